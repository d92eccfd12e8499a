// SPDX-License-Identifier: Apache-2.0
// What a peer says to weft beyond the transport is understood or not, and what is understood can be said again.
#include <weft/net/link/native_protocol.hpp>

#include "input.hpp"

namespace {

using namespace weft::net;
using weft::fuzz::require;

void try_greeting(std::span<const std::byte> private_data) {
  const auto said = greeting::unpack(private_data);
  if (!said) return;
  require(private_data.size() >= greeting::bytes, "half a greeting is none");
  require(said->receive_depth != 0 && said->receive_size <= greeting::largest_receive_size,
          "a greeting says nothing impossible");
  require(greeting::user_data(private_data).size() == said->user_bytes, "the user's bytes are those that it announces");
  const auto packed = said->pack();
  // The same private data with the greeting as we would write it.
  std::vector<std::byte> whole(private_data.begin(), private_data.end());
  std::ranges::copy(packed, whole.begin());
  const auto again = greeting::unpack(whole);
  require(again && again->pack() == packed, "a greeting survives the wire");
}

void try_trailer(std::span<const std::byte> message) {
  const auto said = trailer::unpack(message);
  if (!said) return;
  require(message.size() >= trailer::bytes, "half a trailer is none");
  require(message.size() >= said->size(), "immediate data is all there or not at all");
  trailer::storage storage;
  const auto packed = said->pack(storage);
  // The same payload with the trailer as we would write it.
  std::vector<std::byte> whole(message.begin(), message.end());
  std::ranges::copy(packed, whole.end() - static_cast<std::ptrdiff_t>(packed.size()));
  const auto again = trailer::unpack(whole);
  require(again.has_value(), "a trailer survives the wire");
  trailer::storage other;
  require(std::ranges::equal(again->pack(other), packed), "a trailer survives the wire");
}

void try_owner_message(std::span<const std::byte> message) {
  const auto said = owner_message::unpack(message);
  if (!said) return;
  const bool persists = said->what == owner_message::verb::persist;
  const std::size_t copied = said->direct ? owner_message::most_direct_bytes : owner_message::slot_bytes;
  const std::size_t most = persists ? owner_message::most_persistent_bytes : copied;
  require(said->slot < owner_message::slots && said->bytes <= most, "a slot is one of those");
  std::vector<std::byte> packed(owner_message::max_bytes);
  packed.resize(said->pack(packed));
  const auto again = owner_message::unpack(packed);
  require(again.has_value() && packed.size() <= message.size(), "a message about memory of devices survives the wire");
  std::vector<std::byte> other(owner_message::max_bytes);
  other.resize(again->pack(other));
  require(other == packed, "a message about memory of devices has one form");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::input in(data, size);
  // In memory of its own and exactly that long, for the sanitizer.
  const auto wire = in.run(in.size());
  const std::vector<std::byte> exact(wire.begin(), wire.end());
  try_greeting(exact);
  try_trailer(exact);
  try_owner_message(exact);
  return 0;
}
