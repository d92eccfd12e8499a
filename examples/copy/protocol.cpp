// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <array>

namespace copy {
namespace {

// The kind on the wire is the place in the variant, counted from 1.
constexpr std::array<std::string_view, std::variant_size_v<message>> names = {
    "put", "get", "offer", "ready", "chunk", "taken", "end", "stored", "failed"};

constexpr std::string_view protocol = "a message of the copy protocol";

ready_message read_ready(common::reader& from) {
  ready_message ready;
  if (from.left() == 0) from.malformed("no slots");
  while (from.left() != 0) {
    if (ready.slots.size() == most_slots) from.malformed("too many slots");
    ready.slots.push_back(from.region());
  }
  return ready;
}

taken_message read_taken(common::reader& from) {
  taken_message taken{.index = from.number(8), .slot = {}};
  if (from.left() != 0) taken.slot = from.region();
  return taken;
}

message read(std::size_t kind, common::reader& from) {
  switch (kind) {
    case 1: {
      const std::uint64_t size = from.number(8);
      return put_message{.size = size, .name = std::string(from.last_text(longest_text_bytes))};
    }
    case 2:
      return get_message{.name = std::string(from.last_text(longest_text_bytes))};
    case 3:
      return offer_message{.size = from.number(8)};
    case 4:
      return read_ready(from);
    case 5:
      return chunk_message{.index = from.number(8)};
    case 6:
      return read_taken(from);
    case 7: {
      end_message end{};
      std::ranges::copy(from.bytes(end.sha.size()), end.sha.begin());
      return end;
    }
    case 8:
      return stored_message{};
    case 9:
      return failed_message{.text = printable(from.last_text(longest_text_bytes))};
    default:
      from.malformed("the message has an unknown kind");
  }
}

}  // namespace

packed_message pack(const message& what) {
  const auto cut = [](const std::string& text) { return std::string_view(text).substr(0, longest_text_bytes); };
  return packed_message([&](common::writer& to) {
    const auto fields = common::overloaded{
        [&](const put_message& put) {
          to.number(put.size);
          to.text(cut(put.name));
        },
        [&](const get_message& get) { to.text(cut(get.name)); },
        [&](const offer_message& offer) { to.number(offer.size); },
        [&](const ready_message& ready) {
          for (const auto& slot : ready.slots) to.bytes(slot.pack());
        },
        [&](const chunk_message& chunk) { to.number(chunk.index); },
        [&](const taken_message& taken) {
          to.number(taken.index);
          if (taken.slot) to.bytes(taken.slot->pack());
        },
        [&](const end_message& end) { to.bytes(end.sha); },
        [](const stored_message&) {},
        [&](const failed_message& failed) { to.text(cut(failed.text)); },
    };
    to.number(what.index() + 1, 4);
    std::visit(fields, what);
  });
}

message unpack(std::span<const std::byte> bytes) {
  common::reader from(bytes, protocol);
  const auto kind = static_cast<std::size_t>(from.number(4));
  message what = read(kind, from);
  from.end();
  return what;
}

std::string_view name_of(const message& what) noexcept { return names[what.index()]; }

}  // namespace copy
