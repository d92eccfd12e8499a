// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/runtime/error.hpp>

#include <optional>

namespace weft::net {

/// Why an operation is not posted, as far as that can be known before.
class refusal {
 public:
  refusal(const transfer& item, const connection_state& state) noexcept : item_(item), state_(state) {}

  [[nodiscard]] std::optional<error> find() const;

 private:
  [[nodiscard]] std::optional<error> missing_capability() const;
  [[nodiscard]] std::optional<error> of_local_memory() const;
  [[nodiscard]] std::optional<error> of_remote_memory() const;
  [[nodiscard]] std::optional<error> of_rights() const;

  const transfer& item_;
  const connection_state& state_;
};

}  // namespace weft::net
