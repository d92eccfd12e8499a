// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kit/standard.hpp"
#include <kv/table.hpp>

namespace kv::looking {

inline constexpr std::size_t record_memory = std::size_t{256} << 10;

/// The memory of a table.
inline std::vector<std::uint64_t> words_for(std::uint64_t buckets) {
  return std::vector<std::uint64_t>((buckets * bucket_bytes + record_memory) / sizeof(std::uint64_t));
}

/// What a client makes of a table's memory that nobody writes meanwhile.
inline outcome look_in(std::span<const std::byte> memory, std::uint64_t bucket, std::string_view key, value& into,
                       moment now) {
  bucket_search search(memory.subspan(bucket * bucket_bytes).first<bucket_bytes>(), bucket, key, now);
  record_place place;
  outcome result = search.next(into, place);
  while (result == outcome::in_record) {
    result = read_record(memory.subspan(place.offset, place.bytes()), place, key, into);
    if (result == outcome::absent) result = search.next(into, place);
  }
  return result;
}

inline outcome look(std::span<const std::byte> memory, std::uint64_t buckets, std::string_view key, value& into,
                    moment now) {
  const places where = places_of(key, buckets);
  const outcome first = look_in(memory, where.first, key, into, now);
  return first == outcome::absent ? look_in(memory, where.second, key, into, now) : first;
}

/// What the server finds, as a copy.
inline bool get(table& data, key_in key, value& into, moment now) {
  const auto found = data.find(key, now);
  if (found) into = value(found->view(), found->flags());
  return found.has_value();
}

}  // namespace kv::looking
