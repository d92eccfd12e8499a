// SPDX-License-Identifier: Apache-2.0
#include "mask.hpp"

#include <fmt/core.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <regex>

namespace info {
namespace {

bool is_name_character(char c) noexcept { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// An IPv4 address; an IPv6 address with "::" inside or at its end, or at its beginning; three groups of hexadecimal
// digits or more: a GID, a GUID, a hardware address.
const std::regex& addresses_and_guids() {
  static const std::regex all(
      R"(\b\d{1,3}(?:\.\d{1,3}){3}\b)"
      R"(|\b[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*)?(?:\.\d{1,3}){0,3}(?![0-9A-Za-z]))"
      R"(|::[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*(?:\.\d{1,3}){0,3}(?![0-9A-Za-z]))"
      R"(|\b[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){2,}\b)");
  return all;
}

// An IPv4 address as IPv6 has it, so that a GID and the address that it holds are the same.
bool parse_address(const std::string& text, in6_addr& six) {
  const bool is_four = text.find(':') == std::string::npos;
  return ::inet_pton(AF_INET6, (is_four ? "::ffff:" + text : text).c_str(), &six) == 1;
}

// 127.0.0.0/8, 0.0.0.0, ::1 and ::
bool belongs_to_nobody(const in6_addr& six) {
  if (!IN6_IS_ADDR_V4MAPPED(&six)) return IN6_IS_ADDR_LOOPBACK(&six) || IN6_IS_ADDR_UNSPECIFIED(&six);
  const auto* const four = &six.s6_addr[12];
  return four[0] == 127 || std::all_of(four, four + 4, [](unsigned char each) { return each == 0; });
}

}  // namespace

mask::mask(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    const std::string first = host.substr(0, host.find('.'));
    const bool is_number = std::ranges::all_of(first, [](unsigned char c) { return std::isdigit(c) != 0; });
    for (const std::string& name : {host, is_number ? std::string() : first}) {
      if (!name.empty() && name != "localhost") hosts_.push_back(name);
    }
  }
  std::ranges::sort(hosts_, [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string mask::numbered(const std::string& kind, const std::string& key) {
  auto& all = numbers_[kind];
  return fmt::format("{}-{}", kind, all.try_emplace(key, all.size() + 1).first->second);
}

std::string mask::word_for(const std::string& found) {
  in6_addr six{};
  if (!parse_address(found, six)) return numbered("guid", found);
  if (belongs_to_nobody(six)) return found;
  const std::string key(reinterpret_cast<const char*>(&six), sizeof six);
  return numbered(IN6_IS_ADDR_LINKLOCAL(&six) ? "link-local" : "address", key);
}

std::string mask::apply(std::string_view text) {
  std::string rest(text);
  for (const std::string& host : hosts_) {
    for (std::size_t at = 0; (at = rest.find(host, at)) != std::string::npos;) {
      const std::size_t end = at + host.size();
      if ((at != 0 && is_name_character(rest[at - 1])) || (end < rest.size() && is_name_character(rest[end]))) {
        at = end;
        continue;
      }
      const std::string word = numbered("host", host);
      rest.replace(at, host.size(), word);
      at += word.size();
    }
  }
  std::string masked;
  std::smatch found;
  while (std::regex_search(rest, found, addresses_and_guids())) {
    masked += found.prefix().str() + word_for(found.str());
    rest = found.suffix().str();
  }
  return masked + rest;
}

}  // namespace info
