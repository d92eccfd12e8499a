// SPDX-License-Identifier: Apache-2.0
#include "protocol.hpp"

#include <array>

#include <common/printable.hpp>

namespace kvcache {
namespace {

// The kind on the wire is the place in the variant, counted from 1.
constexpr std::array<std::string_view, std::variant_size_v<message>> names = {
    "want", "lent", "layer", "accepted", "evicted", "refused", "dropped"};

constexpr std::string_view protocol = "a message of the kvcache protocol";

std::string read_reason(common::reader& from) { return common::printable(from.last_text(longest_text_bytes)); }

want_message read_want(common::reader& from) {
  want_message want;
  want.sequence = from.number(8);
  want.of.pages = static_cast<std::uint32_t>(from.number(4, most_pages, "pages"));
  want.of.layers = static_cast<std::uint32_t>(from.number(4, most_layers, "layers"));
  want.of.block_bytes = from.number(8, most_block_bytes, "bytes of a block");
  return want;
}

lent_message read_lent(common::reader& from) {
  const std::uint64_t sequence = from.number(8);
  const std::uint64_t time = from.number(8, longest_loan.count(), "milliseconds of a loan");
  return {.sequence = sequence, .time = std::chrono::milliseconds(time), .pages = from.region()};
}

message read(std::size_t kind, common::reader& from) {
  switch (kind) {
    case 1:
      return read_want(from);
    case 2:
      return read_lent(from);
    case 3:
      return layer_message{.number = static_cast<std::uint32_t>(from.number(4))};
    case 4:
      return accepted_message{.sequence = from.number(8)};
    case 5: {
      const std::uint64_t sequence = from.number(8);
      return evicted_message{.sequence = sequence, .text = read_reason(from)};
    }
    case 6: {
      const std::uint64_t sequence = from.number(8);
      return refused_message{.sequence = sequence, .text = read_reason(from)};
    }
    case 7:
      return dropped_message{.sequence = from.number(8)};
    default:
      from.malformed("the message has an unknown kind");
  }
}

}  // namespace

packed_message pack(const message& what) {
  const auto cut = [](const std::string& text) { return std::string_view(text).substr(0, longest_text_bytes); };
  return packed_message([&](common::writer& to) {
    const auto fields = common::overloaded{
        [&](const want_message& want) {
          to.number(want.sequence);
          to.number(want.of.pages);
          to.number(want.of.layers);
          to.number(want.of.block_bytes);
        },
        [&](const lent_message& lent) {
          to.number(lent.sequence);
          to.number(static_cast<std::uint64_t>(lent.time.count()));
          to.bytes(lent.pages.pack());
        },
        [&](const layer_message& layer) { to.number(layer.number); },
        [&](const accepted_message& accepted) { to.number(accepted.sequence); },
        [&](const evicted_message& evicted) {
          to.number(evicted.sequence);
          to.text(cut(evicted.text));
        },
        [&](const refused_message& refused) {
          to.number(refused.sequence);
          to.text(cut(refused.text));
        },
        [&](const dropped_message& dropped) { to.number(dropped.sequence); },
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

}  // namespace kvcache
