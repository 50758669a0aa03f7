#include "launcher/notice/times.h"

#include <fmt/format.h>

#include <array>

namespace surefoot::notice {
namespace {

using std::chrono::minutes;

constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
constexpr std::array<std::string_view, 7> kDays = {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
constexpr minutes kFarthestZone = std::chrono::hours(14);

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Eats a text from its front; the first thing that does not fit spoils it.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}
  [[nodiscard]] bool fits() const { return fits_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

  bool maybe(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) { fits_ = maybe(word) && fits_; }
  // Of exactly so many digits.
  int number(std::size_t digits) {
    int value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      if (!is_digit()) return fits_ = false, 0;
      value = value * 10 + (rest_.front() - '0');
      rest_.remove_prefix(1);
    }
    return value;
  }
  // 1 from here on; 0: none of them.
  template <std::size_t N>
  int one_of(const std::array<std::string_view, N>& words) {
    for (std::size_t i = 0; i < N; ++i) {
      if (maybe(words[i])) return static_cast<int>(i) + 1;
    }
    return 0;
  }
  [[nodiscard]] bool is_digit() const {
    return !rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9';
  }
  // ".123456789", to milliseconds.
  int fraction() {
    if (!maybe(".")) return 0;
    int value = 0;
    int digits = 0;
    for (; is_digit() && digits < 9; ++digits) {
      const int digit = number(1);
      if (digits < 3) value = value * 10 + digit;
    }
    if (digits == 0) fits_ = false;
    for (; digits < 3; ++digits) value *= 10;
    return value;
  }
  void spoil() { fits_ = false; }

 private:
  std::string_view rest_;
  bool fits_ = true;
};

struct Clock {
  int hour = 0;
  int minute = 0;
  int second = 0;
  int millisecond = 0;
};

Clock clock_of(Scanner& scanner) {
  Clock clock;
  clock.hour = scanner.number(2);
  scanner.expect(":");
  clock.minute = scanner.number(2);
  scanner.expect(":");
  clock.second = scanner.number(2);
  clock.millisecond = scanner.fraction();
  return clock;
}

std::optional<WallTime> time_of(int year, int month, int day, const Clock& clock, minutes offset) {
  const std::chrono::year_month_day date{std::chrono::year{year},
                                         std::chrono::month{static_cast<unsigned>(month)},
                                         std::chrono::day{static_cast<unsigned>(day)}};
  // 60: a leap second.
  if (!date.ok() || clock.hour > 23 || clock.minute > 59 || clock.second > 60) return std::nullopt;
  return WallTime(std::chrono::sys_days(date)) + std::chrono::hours(clock.hour) +
         minutes(clock.minute) + std::chrono::seconds(clock.second) +
         std::chrono::milliseconds(clock.millisecond) - offset;
}

minutes zone_of(Scanner& scanner, std::optional<minutes> local) {
  if (scanner.maybe("Z")) return {};
  if (scanner.at_end() && local) return *local;
  const bool west = scanner.maybe("-");
  if (!west) scanner.expect("+");
  const minutes hours = std::chrono::hours(scanner.number(2));
  scanner.maybe(":");
  const int rest = scanner.number(2);
  const minutes offset = hours + minutes(rest);
  if (rest > 59 || offset > kFarthestZone) scanner.spoil();
  return west ? -offset : offset;
}

std::optional<WallTime> parse_iso(std::string_view text, std::optional<minutes> local) {
  Scanner scanner(text);
  const int year = scanner.number(4);
  scanner.expect("-");
  const int month = scanner.number(2);
  scanner.expect("-");
  const int day = scanner.number(2);
  if (!scanner.maybe("T")) scanner.expect(" ");
  const Clock clock = clock_of(scanner);
  const minutes offset = zone_of(scanner, local);
  if (!scanner.fits() || !scanner.at_end()) return std::nullopt;
  return time_of(year, month, day, clock, offset);
}

std::optional<WallTime> parse_rfc(std::string_view text) {
  Scanner scanner(text);
  if (scanner.one_of(kDays) != 0) scanner.expect(", ");
  int day = scanner.number(1);
  if (scanner.is_digit()) day = day * 10 + scanner.number(1);
  scanner.expect(" ");
  const int month = scanner.one_of(kMonths);
  scanner.expect(" ");
  const int year = scanner.number(4);
  scanner.expect(" ");
  const Clock clock = clock_of(scanner);
  if (!scanner.maybe(" GMT")) scanner.expect(" UTC");
  if (!scanner.fits() || !scanner.at_end()) return std::nullopt;
  return time_of(year, month, day, clock, minutes(0));
}

}  // namespace

std::optional<WallTime> parse_time(std::string_view text, std::optional<minutes> local) {
  text = trimmed(text);
  const auto iso = parse_iso(text, local);
  return iso ? iso : parse_rfc(text);
}

std::string to_text(WallTime time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(std::chrono::floor<std::chrono::seconds>(time - day));
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     clock.hours().count(), clock.minutes().count(), clock.seconds().count());
}

}  // namespace surefoot::notice
