// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/shm/link_breaker.hpp>
#include <weft/net/shm/posted_request.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/software/access_status.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <optional>
#include <span>

// The last record of an end that breaks its connection, and the errors that both ends report then.
namespace weft::net::shm {

/// The most text in such a record.
inline constexpr std::size_t max_words = 160;

/// `is_late`: this end has revoked the key. The peer may not have known that, so this is no protocol error.
[[nodiscard]] error why_refused(const refused_access& what, software::access_status status, bool is_late) noexcept;
[[nodiscard]] record record_of(const refused_access& what) noexcept;
/// How a request has ended, if the peer has refused one in the record `refused`, or none.
[[nodiscard]] work_status status_of(const posted_request& item, const std::optional<record>& refused) noexcept;
/// Why the peer has broken the connection.
[[nodiscard]] error why_broken(const record& header, std::span<const std::byte> content) noexcept;

}  // namespace weft::net::shm
