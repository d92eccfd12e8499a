// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <weft/runtime/error.hpp>
#include <weft/runtime/executor.hpp>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

namespace info {
namespace {

constexpr std::size_t most_of_a_file = std::size_t{64} << 10;
constexpr unsigned most_processors = 1 << 16;

bool is_space(char c) noexcept { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\0'; }

std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  return text;
}

unsigned bits_set(const void* bytes, std::size_t size) noexcept {
  std::array<unsigned char, 16> copy{};
  std::memcpy(copy.data(), bytes, std::min(size, copy.size()));
  unsigned total = 0;
  for (const unsigned char each : copy) total += static_cast<unsigned>(std::popcount(each));
  return total;
}

std::optional<interface_address> address_of(const ifaddrs& item) {
  if (item.ifa_addr == nullptr) return std::nullopt;
  std::array<char, INET6_ADDRSTRLEN> text{};
  interface_address found{.interface = item.ifa_name, .address = {}};
  if (item.ifa_addr->sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, item.ifa_addr, sizeof four);
    ::inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
    found.link_local = (ntohl(four.sin_addr.s_addr) >> 16) == 0xA9FE;
    if (item.ifa_netmask != nullptr) {
      sockaddr_in mask{};
      std::memcpy(&mask, item.ifa_netmask, sizeof mask);
      found.prefix = bits_set(&mask.sin_addr, sizeof mask.sin_addr);
    }
  } else if (item.ifa_addr->sa_family == AF_INET6) {
    sockaddr_in6 six{};
    std::memcpy(&six, item.ifa_addr, sizeof six);
    ::inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
    found.link_local = IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr);
    if (item.ifa_netmask != nullptr) {
      sockaddr_in6 mask{};
      std::memcpy(&mask, item.ifa_netmask, sizeof mask);
      found.prefix = bits_set(&mask.sin6_addr, sizeof mask.sin6_addr);
    }
  } else {
    return std::nullopt;
  }
  found.address = text.data();
  return found;
}

// "gid10" behind "gid9", and "10" behind "9".
bool comes_before(const std::string& a, const std::string& b) {
  const auto stem = [](const std::string& name) { return name.find_last_not_of("0123456789") + 1; };
  const std::size_t stem_of_a = stem(a);
  const std::size_t stem_of_b = stem(b);
  if (a.compare(0, stem_of_a, b, 0, stem_of_b) != 0) return a < b;
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace

std::vector<interface_address> machine_calls::addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<interface_address> all;
  for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
    if (auto found = address_of(*item)) all.push_back(std::move(*found));
  }
  return all;
}

int machine_calls::try_to_open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

int machine_calls::try_memory_file() {
  const int fd = ::memfd_create("weft-info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

driver_info machine_calls::event_driver() {
  try {
    const weft::executor one;
    return {.name = std::string(one.driver()), .reason = one.driver_reason(), .failure = {}};
  } catch (const weft::error& why) {
    return {.name = {}, .reason = {}, .failure = why.what()};
  }
}

std::vector<weft::net::fabric_info> machine_calls::fabrics() { return weft::net::list_fabrics(); }

bool machine_calls::has_verbs() { return WEFT_INFO_VERBS; }

bool machine_calls::has_iwarp() { return WEFT_INFO_IWARP; }

std::string machine_calls::environment(const char* name) {
  const char* const found = std::getenv(name);
  return found != nullptr ? found : "";
}

std::string machine_calls::architecture() {
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "";
}

std::string machine_calls::verbs_library() {
  const void* const function = ::dlsym(RTLD_DEFAULT, "ibv_get_device_list");
  Dl_info found{};
  if (function == nullptr || ::dladdr(function, &found) == 0 || found.dli_fname == nullptr) return {};
  std::error_code failure;
  const auto file = std::filesystem::canonical(found.dli_fname, failure);  // libibverbs.so.1 is a link
  return failure ? std::string(found.dli_fname) : file.string();
}

machine_calls& machine::real_calls() {
  static machine_calls real;
  return real;
}

machine::machine(std::string root, machine_calls& calls) : root_(std::move(root)), calls_(calls) {
  while (!root_.empty() && root_.back() == '/') root_.pop_back();
}

std::string machine::real_path(std::string_view path) const { return root_ + std::string(path); }

std::optional<std::string> machine::read(std::string_view path) const {
  std::ifstream file(real_path(path), std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(most_of_a_file, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) return std::nullopt;
  text.resize(static_cast<std::size_t>(file.gcount()));
  return std::string(trimmed(text));
}

std::optional<std::int64_t> machine::read_number(std::string_view path) const {
  const auto text = read(path);
  if (!text) return std::nullopt;
  std::int64_t number = 0;
  const auto result = std::from_chars(text->data(), text->data() + text->size(), number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::vector<std::string> machine::list(std::string_view path) const {
  std::vector<std::string> names;
  std::error_code failure;
  std::filesystem::directory_iterator item(real_path(path), failure);
  while (!failure && item != std::filesystem::directory_iterator()) {
    names.push_back(item->path().filename().string());
    item.increment(failure);
  }
  std::sort(names.begin(), names.end(), comes_before);
  return names;
}

bool machine::exists(std::string_view path) const {
  std::error_code failure;
  return std::filesystem::exists(real_path(path), failure);
}

std::string machine::link_name(std::string_view path) const {
  std::error_code failure;
  return std::filesystem::read_symlink(real_path(path), failure).filename().string();
}

std::string machine::field(std::string_view path, std::string_view name) const {
  const auto text = read(path);
  if (!text) return {};
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':') {
      return std::string(trimmed(line.substr(name.size() + 1)));
    }
  }
  return {};
}

std::vector<unsigned> parse_cpu_list(std::string_view text) {
  std::vector<unsigned> all;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    unsigned first = 0;
    auto [after, failure] = std::from_chars(at, end, first);
    if (failure != std::errc()) return {};
    unsigned last = first;
    if (after != end && *after == '-') {
      const auto second = std::from_chars(after + 1, end, last);
      if (second.ec != std::errc()) return {};
      after = second.ptr;
    }
    if (last < first || last >= most_processors) return {};
    for (unsigned one = first; one <= last; ++one) all.push_back(one);
    if (after == end) break;
    if (*after != ',') return {};
    at = after + 1;
  }
  return all;
}

}  // namespace info
