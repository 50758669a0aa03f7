#include "checkpoint/store/s3/replies.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <pugixml.hpp>

#include "checkpoint/store/s3/signature.h"

namespace surefoot::s3 {
namespace {

// Names of elements are compared without a namespace prefix.
std::string_view local_name(const pugi::xml_node& node) {
  const std::string_view name = node.name();
  const auto colon = name.find(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

std::string_view text_of(const pugi::xml_node& node, std::string_view name) {
  for (const pugi::xml_node& child : node.children())
    if (local_name(child) == name) return child.text().get();
  return {};
}

bool parse(pugi::xml_document& document, std::string_view body) {
  if (body.size() > kMaxReplyBytes) return false;
  return static_cast<bool>(document.load_buffer(
      body.data(), body.size(), pugi::parse_minimal | pugi::parse_escapes | pugi::parse_cdata,
      pugi::encoding_utf8));
}

// The root element, of that name.
Result<pugi::xml_node> root_of(pugi::xml_document& document, std::string_view body,
                               std::string_view name) {
  if (!parse(document, body)) return error(Code::kCorrupt, "the reply is no XML");
  const pugi::xml_node root = document.document_element();
  if (local_name(root) != name) return error(Code::kCorrupt, "the reply is no {}", name);
  return root;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Some services write a space as '+'. A '+' itself is always encoded.
std::optional<std::string> url_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (i + 2 >= text.size() || digit_of(text[i + 1]) < 0 || digit_of(text[i + 2]) < 0) return {};
    out += static_cast<char>(digit_of(text[i + 1]) * 16 + digit_of(text[i + 2]));
    i += 2;
  }
  return out;
}

// Services that do not know encoding-type=url do not say it back, and send keys as they are.
Result<std::string> key_of(const pugi::xml_node& root, std::string_view text) {
  if (text_of(root, "EncodingType") != "url") return std::string(text);
  auto decoded = url_decode(text);
  if (!decoded) return error(Code::kCorrupt, "the reply has a badly encoded name");
  return *std::move(decoded);
}

Result<std::int64_t> size_of(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0)
    return error(Code::kCorrupt, "the reply has a size that is no number");
  return value;
}

Result<std::int64_t> time_of(std::string_view text) {
  const std::int64_t time = parse_iso_time(text);
  if (time < 0) return error(Code::kCorrupt, "the reply has a time that is none");
  return time;
}

std::string printable(std::string_view text) {
  static constexpr std::size_t kLongest = 300;
  std::string out(text.substr(0, kLongest));
  for (char& c : out) c = c >= ' ' && c <= '~' ? c : ' ';
  return out;
}

}  // namespace

ErrorReply parse_error(std::string_view body) {
  pugi::xml_document document;
  auto root = root_of(document, body, "Error");
  if (!root) return {};
  return {printable(text_of(*root, "Code")), printable(text_of(*root, "Message")),
          printable(text_of(*root, "Region"))};
}

std::string root_name(std::string_view body) {
  pugi::xml_document document;
  if (!parse(document, body)) return "";
  return std::string(local_name(document.document_element()));
}

Result<ListPage> parse_list(std::string_view body) {
  pugi::xml_document document;
  SUREFOOT_ASSIGN(const pugi::xml_node root, root_of(document, body, "ListBucketResult"));
  ListPage page;
  for (const pugi::xml_node& node : root.children()) {
    if (local_name(node) != "Contents") continue;
    ListedObject object;
    SUREFOOT_ASSIGN(object.key, key_of(root, text_of(node, "Key")));
    SUREFOOT_ASSIGN(object.bytes, size_of(text_of(node, "Size")));
    SUREFOOT_ASSIGN(object.modified_s, time_of(text_of(node, "LastModified")));
    page.objects.push_back(std::move(object));
  }
  if (text_of(root, "IsTruncated") != "true") return page;
  page.continuation = text_of(root, "NextContinuationToken");
  // Without it the rest would silently be missing.
  if (page.continuation.empty())
    return error(Code::kCorrupt, "the list goes on, but the reply does not say where");
  return page;
}

Result<std::string> parse_initiated(std::string_view body) {
  pugi::xml_document document;
  auto root = root_of(document, body, "InitiateMultipartUploadResult");
  if (!root) root = root_of(document, body, "InitiateMultipartUpload");  // of rclone
  if (!root) return std::move(root).error();
  std::string id(text_of(*root, "UploadId"));
  if (id.empty()) return error(Code::kCorrupt, "the reply has no UploadId");
  return id;
}

Result<UploadPage> parse_uploads(std::string_view body) {
  pugi::xml_document document;
  SUREFOOT_ASSIGN(const pugi::xml_node root, root_of(document, body, "ListMultipartUploadsResult"));
  UploadPage page;
  for (const pugi::xml_node& node : root.children()) {
    if (local_name(node) != "Upload") continue;
    ListedUpload upload;
    SUREFOOT_ASSIGN(upload.key, key_of(root, text_of(node, "Key")));
    upload.id = text_of(node, "UploadId");
    SUREFOOT_ASSIGN(upload.initiated_s, time_of(text_of(node, "Initiated")));
    page.uploads.push_back(std::move(upload));
  }
  if (text_of(root, "IsTruncated") != "true") return page;
  SUREFOOT_ASSIGN(page.next_key, key_of(root, text_of(root, "NextKeyMarker")));
  page.next_id = text_of(root, "NextUploadIdMarker");
  if (page.next_key.empty())
    return error(Code::kCorrupt, "the list goes on, but the reply does not say where");
  return page;
}

Result<PartPage> parse_parts(std::string_view body) {
  pugi::xml_document document;
  SUREFOOT_ASSIGN(const pugi::xml_node root, root_of(document, body, "ListPartsResult"));
  PartPage page;
  for (const pugi::xml_node& node : root.children()) {
    if (local_name(node) != "Part") continue;
    SUREFOOT_ASSIGN(const std::int64_t time, time_of(text_of(node, "LastModified")));
    page.newest_s = std::max(page.newest_s, time);
  }
  if (text_of(root, "IsTruncated") != "true") return page;
  page.next = text_of(root, "NextPartNumberMarker");
  if (page.next.empty())
    return error(Code::kCorrupt, "the list goes on, but the reply does not say where");
  return page;
}

std::string complete_body(const std::vector<UploadedPart>& parts) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  root.append_attribute("xmlns") = "http://s3.amazonaws.com/doc/2006-03-01/";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    pugi::xml_node part = root.append_child("Part");
    part.append_child("PartNumber").text() = static_cast<unsigned>(i + 1);
    part.append_child("ETag").text() = parts[i].etag.c_str();
    if (!parts[i].crc32.empty()) part.append_child("ChecksumCRC32").text() = parts[i].crc32.c_str();
  }
  struct Writer : pugi::xml_writer {
    std::string text;
    void write(const void* data, std::size_t size) override {
      text.append(static_cast<const char*>(data), size);
    }
  } writer;
  document.save(writer, "", pugi::format_raw | pugi::format_no_declaration);
  return std::move(writer.text);
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return {};
  text.remove_prefix(5);
  // Digits only: from_chars() alone takes a sign as well.
  const auto number = [&text](char before) -> std::int64_t {
    std::int64_t value = -1;
    if (text.size() < 2 || text[0] != before || text[1] < '0' || text[1] > '9') return -1;
    text.remove_prefix(1);
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc()) return -1;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return value;
  };
  ContentRange range;
  range.first = number(' ');
  range.last = number('-');
  range.total = number('/');
  if (!text.empty() || range.first < 0 || range.last < range.first || range.total <= range.last)
    return {};
  return range;
}

Duration parse_retry_after(std::string_view text) {
  static constexpr std::int64_t kLongest_s = 3600;
  const auto value = size_of(text);
  return std::chrono::seconds(value ? std::min(*value, kLongest_s) : 0);
}

std::int64_t parse_http_date(const std::string& text) {
  return curl_getdate(text.c_str(), nullptr);
}

}  // namespace surefoot::s3
