// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/net/shm/arriving_request.hpp>
#include <weft/net/software/kernel_copy.hpp>

#include <algorithm>
#include <cstring>

namespace weft::net::shm {

using software::access_status;

arriving_request::destination arriving_request::next_place(std::size_t most, const mr::slice* message,
                                                           software::key_table::reader& keys,
                                                           software::stream_id from) const noexcept {
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left(), most));
  if (message != nullptr) return {.memory = message->bytes().subspan(moved_, bytes)};
  const auto found = keys.write_place(header_.key, header_.address + moved_, bytes, from);
  return {.memory = {found.data, found.size}, .status = found.status, .may_shrink = found.may_shrink};
}

access_status arriving_request::store(std::span<const std::byte> content, software::key_table::reader& keys,
                                      software::stream_id from) const noexcept {
  std::uint64_t address = header_.address + moved_;  // mutant: write each piece
  while (!content.empty()) {
    const auto place = keys.write_place(header_.key, address, content.size(), from);
    if (place.status != access_status::ok) return place.status;
    const std::span<std::byte> memory(place.data, place.size);
    const std::span<const std::byte> part = content.first(memory.size());
    if (!place.may_shrink && header_.total > whole_bytes) {
      std::memcpy(memory.data(), part.data(), part.size());
    } else if (!place.may_shrink) {
      mr::store_shared(memory, part);
    } else if (!software::copy_into(memory, part, place.words)) {
      return access_status::bounds;
    }
    content = content.subspan(part.size());
    address += part.size();
  }
  return access_status::ok;
}

}  // namespace weft::net::shm
