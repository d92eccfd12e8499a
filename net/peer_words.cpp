// SPDX-License-Identifier: Apache-2.0
#include <weft/net/peer_words.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace weft::net {

std::string in_words(std::span<const std::byte> said) {
  const auto printable = [](std::byte byte) { return byte >= std::byte{' '} && byte <= std::byte{'~'}; };
  if (std::all_of(said.begin(), said.end(), printable)) {
    return fmt::format("\"{}\"", std::string_view(reinterpret_cast<const char*>(said.data()), said.size()));
  }
  std::string digits;
  for (const std::byte byte : said) digits += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return digits;
}

}  // namespace weft::net
