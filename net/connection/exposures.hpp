// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/lending.hpp>
#include <weft/net/exposure.hpp>
#include <weft/runtime/task.hpp>

#include <memory>

namespace weft::net {

/// The tasks of connection::expose(). `state` may be gone when a task begins, so each checks `keys` first.
class exposures {
 public:
  static task<exposure> open(connection_state& state, std::shared_ptr<link_keys> keys, mr::buffer memory,
                             mr::usage uses, expose_options how);
  static task<exposure> open(connection_state& state, std::shared_ptr<link_keys> keys, mr::slice range, mr::usage uses,
                             expose_options how);

 private:
  [[nodiscard]] static exposure open_device_memory(connection_state& state, link_keys& keys,
                                                   std::unique_ptr<lending> lent, mr::slice range, mr::usage uses,
                                                   const std::string& what);
};

}  // namespace weft::net
