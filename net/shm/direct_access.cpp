// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/page.hpp>
#include <weft/net/shm/direct_access.hpp>
#include <weft/net/software/direct_memory.hpp>
#include <weft/runtime/error.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace weft::net::shm {
namespace {

constexpr std::uint64_t bit_of(std::uint32_t number) noexcept { return std::uint64_t{1} << number; }

// The most that is mapped for a peer. There has to be a limit, because a sparse file can be as long as the whole
// address space.
std::uint64_t memory_of_machine() noexcept {
  static const std::uint64_t bytes = mr::detail::page_bytes() * static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return bytes;
}

const char* fault_of(const offered_memory& where, std::uint64_t length, const descriptor& file) noexcept {
  const int seals = file.calls().fcntl(file.fd(), F_GET_SEALS, 0);
  if (seals < 0) return "it offers something else than a file in memory";
  // mutant: map a file
  if ((seals & F_SEAL_SHRINK) == 0) return "it offers a file that can become shorter";
  const off_t there = file.calls().lseek(file.fd(), 0, SEEK_END);
  // mutant: map more of a file
  if (there < 0 || where.file_bytes > static_cast<std::uint64_t>(there)) return "it offers more than there is";
  if (length == 0 || where.offset > where.file_bytes || length > where.file_bytes - where.offset) {
    return "it offers what is not in the file";
  }
  return nullptr;
}

}  // namespace

std::byte* direct_access::range::at(std::uint64_t wanted_address, std::uint64_t bytes, right wanted) const noexcept {
  const std::uint8_t needed = wanted == right::read    ? record::readable
                              : wanted == right::write ? record::writable
                                                       : record::atomic;
  // mutant: write directly what may only be read
  if ((rights & needed) == 0 || wanted_address < address) return nullptr;
  const std::uint64_t from = wanted_address - address;
  if (from > length || bytes > length - from) return nullptr;  // mutant: use memory directly beyond
  std::byte* const place = first + from;
  const bool aligned = wanted_address % 8 == 0 && reinterpret_cast<std::uintptr_t>(place) % 8 == 0;
  return wanted != right::atomic || aligned ? place : nullptr;
}

const char* direct_access::consider(const record& offer, const offered_memory& where, descriptor file) noexcept {
  if (offer.number >= max_loans || ranges_[offer.number] != nullptr) return "it offers memory under a number in use";
  if (!file) return declined_ |= bit_of(offer.number), nullptr;
  if (const char* const fault = fault_of(where, offer.total, file); fault != nullptr) return fault;
  (adopt(offer, where, file) ? taken_ : declined_) |= bit_of(offer.number);
  return nullptr;
}

bool direct_access::adopt(const record& offer, const offered_memory& where, const descriptor& file) noexcept try {
  const std::uint64_t begin = where.offset / mr::detail::page_bytes() * mr::detail::page_bytes();
  const std::uint64_t bytes = where.offset - begin + offer.total;
  if (software::has_huge_pages(file) || bytes > memory_of_machine() - mapped_bytes_) return false;
  const bool changes = (offer.flags & (record::writable | record::atomic)) != 0;
  auto made = mr::mapping::of_file({.descriptor = file.fd(), .offset = begin}, bytes, file.calls(),
                                   changes ? mr::file_access::read_write : mr::file_access::read_only);
  std::byte* const first = made.data() + (where.offset - begin);
  ranges_[offer.number].reset(new range{.key = offer.key,
                                        .number = offer.number,
                                        .address = offer.address,
                                        .length = offer.total,
                                        .rights = offer.flags,
                                        .first = first,
                                        .file = std::move(made)});
  order_[count_++] = offer.number;
  mapped_bytes_ += bytes;
  return true;
} catch (const error&) {  // mmap(2) has failed
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

const char* direct_access::give_back(std::uint32_t number) noexcept {
  if (number >= max_loans) return "it ends a loan that there is not";
  drop(number);  // mutant: keep memory mapped
  returned_ |= bit_of(number);
  return nullptr;
}

void direct_access::forget(std::uint32_t key) noexcept {
  if (const range* const found = find(key); found != nullptr) drop(found->number);
}

void direct_access::drop(std::uint32_t number) noexcept {
  if (ranges_[number] == nullptr) return;
  mapped_bytes_ -= ranges_[number]->file.size();
  const auto last = std::remove(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count_), number);
  count_ = static_cast<std::size_t>(last - order_.begin());
  ranges_[number].reset();
}

direct_access::range* direct_access::find(std::uint64_t key) noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    range& each = *ranges_[order_[i]];
    if (each.key != key) continue;
    std::swap(order_[0], order_[i]);
    return &each;
  }
  return nullptr;
}

direct_place direct_access::place(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) noexcept {
  const range* const found = find(key);
  if (found == nullptr) return {};
  std::byte* const readable = found->at(address, bytes, right::read);
  std::byte* const writable = found->at(address, bytes, right::write);
  return {.first = readable != nullptr ? readable : writable,
          .bytes = bytes,
          .may_read = readable != nullptr,
          .may_write = writable != nullptr,
          .turn = &own_.turn,
          .lent = &other_.lent[found->number]};
}

std::optional<record> direct_access::next_answer() const noexcept {
  const auto first = [](std::uint64_t bits) { return static_cast<std::uint32_t>(std::countr_zero(bits)); };
  if (taken_ != 0) return record{.kind = record_kind::taken, .number = first(taken_)};
  if (declined_ != 0) {
    return record{.kind = record_kind::taken, .flags = record::declined, .number = first(declined_)};
  }
  if (returned_ != 0) return record{.kind = record_kind::returned, .number = first(returned_)};
  return std::nullopt;
}

void direct_access::answered(const record& what) noexcept {
  const bool is_taken = what.kind == record_kind::taken;
  std::uint64_t& owed = !is_taken ? returned_ : what.flags == record::declined ? declined_ : taken_;
  owed &= ~bit_of(what.number);
}

}  // namespace weft::net::shm
