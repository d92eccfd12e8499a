// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

namespace weft::mr {

/// How many bytes this process may lock in memory; std::nullopt if there is no limit: RLIMIT_MEMLOCK of getrlimit(2),
/// and CAP_IPC_LOCK of capabilities(7), which lifts it.
[[nodiscard]] std::optional<std::size_t> locked_memory_limit() noexcept;

}  // namespace weft::mr
