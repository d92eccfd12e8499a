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

// The `broken` record of an end that breaks its connection, and the errors that both ends report then.
namespace weft::net::shm {

/// The most text in a `broken` record, in bytes.
inline constexpr std::size_t max_words = 160;

/// The error for a refused access; no protocol error if `is_late`: the peer may not know that the key is revoked.
[[nodiscard]] error why_refused(const refused_access& what, software::access_status status, bool is_late) noexcept;
[[nodiscard]] record record_of(const refused_access& what) noexcept;
/// How a request ended with the link; `refused` is the peer's record of the request that it refused, if any.
[[nodiscard]] work_status status_of(const posted_request& item, const std::optional<record>& refused) noexcept;
/// Why the peer has broken the connection.
[[nodiscard]] error why_broken(const record& header, std::span<const std::byte> content) noexcept;

}  // namespace weft::net::shm
