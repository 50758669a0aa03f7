#include "checkpoint/store/open_store.h"

#include "checkpoint/store/file/file_store.h"
#include "checkpoint/store/s3/s3_store.h"
#include "configs/store_url.h"

namespace surefoot {
namespace {

s3::PathStyle style_of(config::S3::PathStyle style) {
  switch (style) {
    case config::S3::always:
      return s3::PathStyle::kAlways;
    case config::S3::never:
      return s3::PathStyle::kNever;
    default:
      return s3::PathStyle::kAuto;
  }
}

s3::Checksum checksum_of(config::S3::Checksum checksum) {
  switch (checksum) {
    case config::S3::crc32:
      return s3::Checksum::kCrc32;
    case config::S3::none:
      return s3::Checksum::kNone;
    default:
      return s3::Checksum::kMd5;
  }
}

s3::S3Options options_of(const config::Job& job, const StoreUrl& url) {
  const config::S3& keys = job.checkpoint().s3();
  s3::S3Options options;
  options.endpoint = keys.endpoint();
  options.region = keys.region();
  options.bucket = url.bucket;
  options.prefix = url.prefix.empty() ? job.name() : url.prefix + "/" + job.name();
  options.path_style = style_of(keys.path_style());
  options.checksum = checksum_of(keys.checksum());
  options.part_bytes = keys.part_size();
  options.parallel = keys.parallel();
  options.client.credentials.profile = keys.profile();
  options.client.http.ca_bundle = keys.ca_bundle();
  options.client.http.stall_timeout = std::chrono::milliseconds(keys.stall_timeout());
  return options;
}

}  // namespace

Result<std::unique_ptr<Store>> open_store(const config::Job& job, const JobDirectory& directory,
                                          bool read_only, Duration patience) {
  SUREFOOT_ASSIGN(const StoreUrl url, parse_store_url(job.checkpoint().to()));
  if (url.kind == StoreUrl::Kind::kS3) {
    SUREFOOT_ASSIGN(std::unique_ptr<Store> store,
                    s3::S3Store::open(options_of(job, url), read_only, now() + patience));
    return store;
  }
  SUREFOOT_ASSIGN(std::unique_ptr<Store> store,
                  FileStore::open(directory.checkpoints(job), read_only));
  return store;
}

}  // namespace surefoot
