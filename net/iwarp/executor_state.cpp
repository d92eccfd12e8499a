// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/executor_state.hpp>
#include <weft/net/iwarp/mpa.hpp>

#include <cstring>

namespace weft::net::iwarp {

std::span<std::byte> staging::room() noexcept {
  // What is left is a part of one FPDU: move it down when a whole one would not fit behind it.
  if (capacity - begin_ < mpa::max_fpdu_bytes || end_ == capacity) {
    std::memmove(storage_.get(), storage_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return {storage_.get() + end_, capacity - end_};
}

executor_state& executor_state::of(const std::shared_ptr<domain>& home) {
  executor_core& running = *executor_core::current();
  if (auto* found = running.find_attachment(home.get())) return static_cast<executor_state&>(*found);
  return static_cast<executor_state&>(running.attach(home.get(), std::make_unique<executor_state>(home)));
}

}  // namespace weft::net::iwarp
