// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <utility>

namespace weft {

descriptor::descriptor(descriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), calls_(other.calls_), owned_(other.owned_) {
  if (other.driver_ != nullptr) detail::terminate_because("a descriptor was moved while an event driver uses it");
}

descriptor& descriptor::operator=(descriptor&& other) noexcept {
  if (other.driver_ != nullptr) detail::terminate_because("a descriptor was moved while an event driver uses it");
  close();
  fd_ = std::exchange(other.fd_, -1);
  calls_ = other.calls_;
  owned_ = other.owned_;
  return *this;
}

void descriptor::close() noexcept {
  if (fd_ < 0) return;
  if (input_ != nullptr || output_ != nullptr)
    detail::terminate_because("a descriptor was closed while an operation uses it");
  if (driver_ != nullptr) driver_->forget(*this);
  if (owned_) calls_->close(fd_);  // mutant: leave descriptors open
  fd_ = -1;
  input_ready_ = true;
  output_ready_ = true;
  hung_up_ = false;
}

}  // namespace weft
