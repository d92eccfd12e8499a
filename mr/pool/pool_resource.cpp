// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/pool_resource.hpp>
#include <weft/runtime/error.hpp>

#include <memory>
#include <new>
#include <utility>

namespace weft::mr {
namespace {

// The alignment of every buffer of a pool.
constexpr std::size_t block_alignment = 64;

constexpr std::size_t with_room_to_align(std::size_t bytes, std::size_t alignment) noexcept {
  return bytes + (alignment > block_alignment ? alignment - block_alignment : 0);
}

std::byte* aligned(const buffer& memory, std::size_t bytes, std::size_t alignment) noexcept {
  void* at = memory.data();
  std::size_t room = memory.size();
  return static_cast<std::byte*>(std::align(alignment, bytes, at, room));
}

}  // namespace

pool_resource::~pool_resource() {
  if (!buffers_.empty()) weft::detail::terminate_because("a pool_resource was destroyed before its containers");
}

task<> pool_resource::reserve(std::size_t bytes, std::size_t alignment) {
  reserved_.reset();
  reserved_ = co_await pool_.allocate(with_room_to_align(bytes, alignment), budget_);
}

void* pool_resource::do_allocate(std::size_t bytes, std::size_t alignment) {
  if (reserved_ && aligned(*reserved_, bytes, alignment) != nullptr) {
    std::byte* const at = aligned(*reserved_, bytes, alignment);
    buffers_.emplace(at, std::move(*reserved_));
    reserved_.reset();
    return at;
  }
  const std::size_t wanted = with_room_to_align(bytes, alignment);
  if (wanted > pool_.max_buffer_bytes(budget_)) throw std::bad_alloc();
  std::optional<buffer> memory = pool_.try_allocate(wanted, budget_);
  if (!memory) throw std::bad_alloc();
  std::byte* const at = aligned(*memory, bytes, alignment);
  buffers_.emplace(at, std::move(*memory));
  return at;
}

void pool_resource::do_deallocate(void* memory, std::size_t, std::size_t) {
  buffers_.erase(static_cast<std::byte*>(memory));
}

mr::slice pool_resource::slice(std::span<std::byte> memory) const {
  const auto behind = buffers_.upper_bound(memory.data());
  if (behind != buffers_.begin()) {
    const buffer& found = std::prev(behind)->second;
    const auto offset = static_cast<std::size_t>(memory.data() - found.data());
    if (offset <= found.size() && memory.size() <= found.size() - offset) return found.slice(offset, memory.size());
  }
  throw error(errc::out_of_range, "take a slice of memory that this pool_resource has not allocated");
}

}  // namespace weft::mr
