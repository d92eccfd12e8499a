// SPDX-License-Identifier: Apache-2.0
#include <weft/net/stream/stream_core.hpp>

namespace weft::net {

stream_ref::stream_ref(stream_core& core) noexcept : core_(&core) { ++core.references_; }

stream_ref::stream_ref(const stream_ref& other) noexcept : core_(other.core_) {
  if (core_ != nullptr) ++core_->references_;
}

stream_ref::~stream_ref() {
  if (core_ != nullptr && --core_->references_ == 0) delete core_;
}

}  // namespace weft::net
