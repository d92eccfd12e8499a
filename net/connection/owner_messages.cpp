// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/usage.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/owner_messages.hpp>
#include <weft/net/connection/transfer.hpp>

#include <utility>

namespace weft::net {
namespace {

constexpr std::size_t message_room = 256;
constexpr std::size_t message_bytes = 8192;
static_assert(owner_message::max_bytes <= message_room &&
              (owner_messages::memory_place + 1) * message_room <= message_bytes);

constexpr mr::usage of_messages = mr::usage::send | mr::usage::write_src;

}  // namespace

task<> owner_messages::prepare() {
  while (!memory_) {
    if (std::exchange(is_finding_, true)) {
      co_await found_.wait();
      continue;
    }
    found_.reset();
    const struct guard {
      owner_messages& self;
      ~guard() {
        self.is_finding_ = false;
        self.found_.set();
      }
    } one_at_a_time{*this};
    memory_ = co_await staging_memory::make(state_.device->domain(), message_bytes, of_messages);
  }
}

task<> owner_messages::post(std::size_t place, owner_message what) {
  const mr::slice room = memory_.slice(place * message_room, message_room);
  const std::size_t bytes = what.pack(room.bytes());
  transfer say(&owner_, transfer_kind::send);
  say.become_internal(room.subslice(0, bytes));
  say.role_ = transfer::role::owner_message;
  co_await say;
}

}  // namespace weft::net
