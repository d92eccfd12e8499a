// SPDX-License-Identifier: Apache-2.0
// A peer describes its memory in any bytes: they are refused, or they are a region that no slice escapes.
// The input is the most that a region takes, then programmes of 18: where the next slice begins, how long it is.
#include <weft/mr/remote_region.hpp>
#include <weft/runtime/error.hpp>

#include <limits>

#include "input.hpp"

namespace {

using namespace weft;
using weft::fuzz::require;

std::optional<mr::remote_region> unpack(std::span<const std::byte> bytes) {
  try {
    return mr::remote_region::unpack(bytes);
  } catch (const error& why) {
    require(why.code() == errc::malformed && why.what()[0] != '\0', "a refusal says what is wrong");
    return std::nullopt;
  }
}

std::optional<mr::remote_slice> cut(const mr::remote_slice& from, std::uint64_t offset, std::uint64_t length) {
  try {
    return from.slice(offset, length);
  } catch (const error& why) {
    require(why.code() == errc::out_of_range, "what does not lie inside is out of range");
    return std::nullopt;
  }
}

std::uint64_t number(fuzz::input& in) {
  const std::uint64_t high = in.word();
  return high << 32 | in.word();
}

/// Numbers near the slice's own are the ones that matter.
std::uint64_t place(fuzz::input& in, const mr::remote_slice& slice) {
  const std::uint8_t choice = in.byte();
  const std::uint64_t value = number(in);
  switch (choice % 4) {
    case 0:
      return value;
    case 1:
      return slice.size() - value % 4;
    case 2:
      return value % std::max<std::uint64_t>(slice.size(), 1);
    default:
      return std::numeric_limits<std::uint64_t>::max() - slice.address() + value % 4;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::input in(data, size);
  const auto wire = in.run(mr::remote_region::max_packed_bytes);
  const auto region = unpack(wire);
  if (!region) return 0;
  require(region->size() != 0, "a region holds something");
  require(!region->places().empty() && region->places().size() <= mr::max_fabrics, "a region is somewhere");
  for (const mr::remote_place& each : region->places()) {
    require(each.address + (region->size() - 1) >= each.address, "a region does not wrap");
    require(region->on(each.fabric) == &each, "each fabric has one place");
  }
  require(region->packed_bytes() <= wire.size(), "a region is no longer than what it was read from");
  require(std::ranges::equal(region->pack(), wire.first(region->packed_bytes())), "a region survives the wire");

  mr::remote_slice slice = *region;
  while (!in.empty()) {
    const std::uint64_t offset = place(in, slice);
    const std::uint64_t length = place(in, slice);
    const auto part = cut(slice, offset, length);
    const bool fits = offset <= slice.size() && length <= slice.size() - offset;
    require(part.has_value() == fits, "a slice is cut if it lies inside, and only then");
    if (!part) continue;
    require(part->usage() == slice.usage() && part->size() == length, "a part has the rights of the whole");
    require(part->places().size() == slice.places().size(), "a part is where the whole is");
    for (std::size_t i = 0; i < slice.places().size(); ++i) {
      const mr::remote_place& from = slice.places()[i];
      const mr::remote_place& to = part->places()[i];
      require(to.fabric == from.fabric && to.key == from.key, "a part has the keys of the whole");
      require(to.address == from.address + offset, "a part is where it was cut");
    }
    slice = *part;
  }
  return 0;
}
