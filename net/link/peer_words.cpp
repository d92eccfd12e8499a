// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/peer_words.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>

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

namespace {

bool is(std::span<const std::byte> said, std::string_view words) {
  const auto same = [](std::byte byte, char letter) { return byte == static_cast<std::byte>(letter); };
  return std::equal(said.begin(), said.end(), words.begin(), words.end(), same);
}

}  // namespace

error rejection(std::span<const std::byte> said, const std::string& step) {
  if (said.empty()) return error(errc::peer_rejected, step);
  if (is(said, no_receives_left)) return system_error(ENOBUFS, step + ": the peer has no receives left");
  if (is(said, no_places_left)) return system_error(ENOBUFS, step + ": the peer has its maximum of connections");
  if (is(said, no_descriptors_left)) return system_error(EMFILE, step + ": the peer has no descriptors left");
  if (is(said, no_common_version)) {
    return error(errc::protocol_error, step + ": the peer and this end speak no common version of weft's protocol");
  }
  if (is(said, no_such_connection)) return error(errc::peer_restarted, step);
  return error(errc::peer_rejected, step + ": the peer says " + in_words(said));
}

error other_versions(const version_range& theirs) {
  const auto name = [](const version_range& all) {
    if (all.oldest == all.newest) return fmt::format("version {}", all.newest);
    return fmt::format("versions {} to {}", all.oldest, all.newest);
  };
  return error(errc::protocol_error, fmt::format("the peer speaks {} of weft's protocol, and this end {}", name(theirs),
                                                 name(spoken_versions)));
}

}  // namespace weft::net
