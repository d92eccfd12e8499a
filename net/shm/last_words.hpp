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

/// The error for an access of the peer's that this end refuses: errc::protocol_error, or errc::connection_failed if
/// `is_late`, because the peer may not know yet that the key is revoked.
[[nodiscard]] error why_refused(const refused_access& what, software::access_status status, bool is_late) noexcept;
[[nodiscard]] record record_of(const refused_access& what) noexcept;
/// The status of a request that ends because the link does. `refused` is the `broken` record in which the peer refused
/// one of this end's requests, if there is such a record.
[[nodiscard]] work_status status_of(const posted_request& item, const std::optional<record>& refused) noexcept;
/// The error that says why the peer has broken the connection: `header` and `content` are its `broken` record.
[[nodiscard]] error why_broken(const record& header, std::span<const std::byte> content) noexcept;

}  // namespace weft::net::shm
