// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/last_words.hpp>
#include <weft/net/software/words.hpp>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <string_view>

namespace weft::net::shm {

using software::words;
using weft::detail::make_error;

error why_refused(const refused_access& what, software::access_status status, bool is_late) noexcept {
  const char* const reason = is_late ? "a key that this end has revoked" : software::reason_of(status);
  const words text =
      words::format("the peer tried to %s %" PRIu64 " bytes at offset %#" PRIx64 " of key 0x%08" PRIx32 ": %s",
                    what.verb, what.bytes, what.address, what.key, reason);
  return make_error(is_late ? errc::connection_failed : errc::protocol_error, text.view());
}

record record_of(const refused_access& what) noexcept {
  return {.kind = record_kind::broken,
          .reason = static_cast<std::uint16_t>(break_reason::access_refused),
          .address = what.address,
          .key = what.key,
          .number = what.number};
}

work_status status_of(const posted_request& item, const std::optional<record>& refused) noexcept {
  if (item.done) return work_status::done;
  if (!refused) return work_status::flushed;
  if (item.numbered && refused->number == item.number) return work_status::access_denied;
  const bool has_place = item.work->kind != work_kind::send;
  return has_place && item.work->remote_key != refused->key ? work_status::bystander : work_status::flushed;
}

error why_broken(const record& header, std::span<const std::byte> content) noexcept {
  std::array<char, max_words> text{};
  const std::size_t length = std::min(content.size(), text.size());
  std::transform(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(length), text.begin(),
                 [](std::byte one) {
                   const auto letter = static_cast<char>(one);
                   return letter >= ' ' && letter <= '~' ? letter : '?';
                 });
  const std::string_view said(text.data(), length);
  switch (static_cast<break_reason>(header.reason)) {
    case break_reason::access_refused: {
      const words all = words::format("the peer refused offset %#" PRIx64 " of key 0x%08" PRIx32 ": %.*s",
                                      header.address, header.key, static_cast<int>(said.size()), said.data());
      return make_error(errc::remote_access, all.view());
    }
    case break_reason::protocol_broken:
      return make_error(errc::connection_failed, said.empty() ? "the peer says that this end broke the rules" : said);
    case break_reason::aborted:
      break;
  }
  return make_error(errc::peer_vanished, said.empty() ? "the peer has broken the connection off" : said);
}

}  // namespace weft::net::shm
