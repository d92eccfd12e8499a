// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::detail {

/// An object that an executor owns to its end, or until drop_attachment(): a queue or a cache of the layers above. See
/// executor_core::attach().
class attachment {
 public:
  virtual ~attachment() = default;
};

}  // namespace weft::detail
