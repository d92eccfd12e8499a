// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region/region_state.hpp>
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/list.hpp>

#include <fmt/core.h>

#include <utility>

namespace weft::net {
namespace {

// The number of the last block that fits; empty if none does.
std::optional<std::uint64_t> last_block(std::uint64_t size, std::uint64_t block, std::uint64_t stride) noexcept {
  if (block > size) return std::nullopt;
  return (size - block) / stride;
}

error outside(std::size_t place, const char* whose, std::uint64_t block, std::uint64_t size) {
  return error(errc::out_of_range, fmt::format("element {} of the list: block {} is not within the {} bytes of {}",
                                               place, block, size, whose));
}

}  // namespace

list_operation::list_operation(operation_owner* owner, transfer_kind kind, std::span<const list_part> parts,
                               const write_options& how)
    : owner_(owner),
      element_(owner, kind),
      parts_(parts),
      blocks_{.local = {}, .remote = mr::remote_slice(0, 0, 0, mr::usage::none)},
      how_(how) {
  element_.borrowed_ = true;
}

list_operation::list_operation(operation_owner* owner, transfer_kind kind, const block_list& blocks,
                               const write_options& how)
    : owner_(owner), element_(owner, kind), blocks_(blocks), is_of_blocks_(true), how_(how) {
  element_.borrowed_ = true;
  element_.aim(blocks.remote);
  if (blocks_.local_stride == 0) blocks_.local_stride = blocks.block_bytes;
  if (blocks_.remote_stride == 0) blocks_.remote_stride = blocks.block_bytes;
  names_ = element_.names_;
  first_remote_ = element_.remote_address_;
  element_.remote_size_ = blocks.block_bytes;
}

list_operation::list_operation(list_operation&& other) noexcept
    : operation_base(static_cast<operation_base&&>(other)),
      owner_(other.owner_),
      element_(std::move(other.element_)),
      parts_(other.parts_),
      blocks_(other.blocks_),
      names_(other.names_),
      first_remote_(other.first_remote_),
      is_of_blocks_(other.is_of_blocks_),
      how_(other.how_) {}

list_operation::~list_operation() {
  if (waiting() && begun()) owner_->abandon(*this);
}

std::string list_operation::describe() const {
  return fmt::format("a list of {}s, {} of {} done, {}", name_of(element_.kind_), done_, size(), peer_of(owner_));
}

void list_operation::begin() {
  if (owner_ != nullptr) return owner_->start(*this);
  failure_ = moved_from_connection();
  finish();
}

void list_operation::cancel() noexcept { owner_->stop(*this); }

void list_operation::elements_ended(std::size_t count) noexcept {
  under_way_ -= count;
  has_failed_ |= element_.failure_.has_value();
  if (!has_failed_) done_ += count;  // mutant: count an element
  if (!failure_) failure_ = std::move(element_.failure_);
  element_.failure_.reset();
  if (failure_ && is_open_) return owner_->stop(*this);  // posts no more elements
  if (!is_open_ && under_way_ == 0) conclude();          // mutant: end a list
}

void list_operation::conclude() noexcept {
  element_.state_ = transfer::state::idle;
  element_.batch_ = nullptr;
  let_go();
  finish();
}

void list_operation::throw_failure() const {
  if (failure_) throw *failure_;
  throw error(errc::canceled, fmt::format("a list of {}s: stopped before it began", name_of(element_.kind_)));
}

// Checks that all blocks are within bounds. All other checks have the same result for each block.
std::optional<error> list_operation::check_blocks() const {
  if (blocks_.block_bytes == 0) return error(errc::invalid_argument, "the blocks of the list have no bytes");
  const auto last_local = last_block(blocks_.local.size(), blocks_.block_bytes, blocks_.local_stride);
  const auto last_remote = last_block(blocks_.remote.size(), blocks_.block_bytes, blocks_.remote_stride);
  for (std::size_t i = 0; i != blocks_.blocks.size(); ++i) {
    const block_pair& pair = blocks_.blocks[i];
    if (!last_local || pair.local > *last_local)
      return outside(i, "this end's memory", pair.local, blocks_.local.size());
    if (!last_remote || pair.remote > *last_remote) {
      return outside(i, "the peer's memory", pair.remote, blocks_.remote.size());
    }
  }
  return std::nullopt;
}

// Loads the element at `place` into element_, to be posted next.
void list_operation::load(std::size_t place) {
  element_.how_.immediate = place + 1 == size() ? how_.immediate : std::nullopt;  // mutant: notify the peer of a list
  if (is_of_blocks_) return load_block(blocks_.blocks[place]);
  element_.one_ = parts_[place].local;
  element_.is_behind_owner_ = element_.is_staged_ = false;
  element_.counter_ = 0;
  element_.aim(parts_[place].remote);
}

void list_operation::load_block(const block_pair& pair) noexcept {
  const std::uint64_t there = pair.remote * blocks_.remote_stride;
  const auto here = static_cast<std::size_t>(pair.local * blocks_.local_stride);
  const mr::slice& memory = blocks_.local;
  element_.one_ = mr::slice({memory.data() + here, static_cast<std::size_t>(blocks_.block_bytes)}, memory.record());
  element_.remote_address_ = first_remote_ + there;
  for (std::size_t i = 0; i != names_.count; ++i) element_.names_.of[i].address = names_.of[i].address + there;
}

// ---- for links that take a list apart ----

void list_operation::look_up(std::size_t first, std::span<run_element> into) noexcept {
  is_of_blocks_ ? look_up_blocks(first, into) : look_up_parts(first, into);
}

// The link must ask for the elements in order, because like_ describes only one stretch of the parts.
void list_operation::look_up_parts(std::size_t first, std::span<run_element> into) noexcept {
  for (run_element& each : into) {
    if (first >= like_.end) {
      load(first);
      note_like(first, end_of_like(first, UINT64_MAX));
    }
    const list_part& part = parts_[first++];
    each = {.local = part.local.data(),
            .bytes = part.local.size(),
            .memory = part.local.record(),
            .remote_key = like_.remote_key,
            .remote_address = part.remote.address() + like_.offset};
  }
}

// Returns the end of the parts that are like the one at `place`: in the same memory at both ends, with the same usage
// and counter, and with a remote size equal to the local one, which is at most `most_bytes`. The last part of the list,
// which may bring immediate data, is like no other.
std::size_t list_operation::end_of_like(std::size_t place, std::uint64_t most_bytes) const noexcept {
  const list_part& model = parts_[place];
  const mr::memory_record* const memory = model.local.record();
  const mr::usage usage = model.remote.usage();
  const mr::remote_place& named = model.remote.places()[0];
  const auto is_like = [&, fabric = named.fabric, key = named.key](const list_part& other) {
    if (other.local.record() != memory || other.remote.usage() != usage) return false;
    if (other.remote.counter() != model.remote.counter()) return false;
    if (other.local.size() != other.remote.size() || other.local.size() > most_bytes) return false;
    const auto places = other.remote.places();
    return places.size() == 1 && places[0].fabric == fabric && places[0].key == key;
  };
  std::size_t end = place + 1;
  if (model.remote.places().size() != 1) return end;
  while (end + 1 < parts_.size() && is_like(parts_[end])) ++end;
  return end;
}

// Records the parts from `place` to `end` in like_. Call it after load(place).
void list_operation::note_like(std::size_t place, std::size_t end) noexcept {
  like_ = {.end = end,
           .remote_key = element_.remote_key_,
           .offset = element_.remote_address_ - parts_[place].remote.address()};
}

void list_operation::look_up_blocks(std::size_t first, std::span<run_element> into) const noexcept {
  const block_pair* pair = &blocks_.blocks[first];
  for (run_element& each : into) {
    each = {.local = blocks_.local.data() + pair->local * blocks_.local_stride,
            .bytes = static_cast<std::size_t>(blocks_.block_bytes),
            .memory = blocks_.local.record(),
            .remote_key = element_.remote_key_,
            .remote_address = first_remote_ + pair->remote * blocks_.remote_stride};
    ++pair;
  }
}

// Parts of one region that follow each other count once.
template <class Function>
void list_operation::for_each_region(Function&& function) const noexcept {
  if (is_of_blocks_) return function(blocks_.local);
  const mr::memory_record* last = nullptr;
  for (const list_part& part : parts_) {
    if (part.local.record() != last) function(part.local);
    last = part.local.record();
  }
}

void list_operation::hold() noexcept {
  for_each_region([](const mr::slice& memory) { mr::region_pin::hold(memory); });
}

void list_operation::let_go() noexcept {
  for_each_region([](const mr::slice& memory) { mr::region_pin::release(memory); });
}

std::uint64_t list_operation::bytes_of_next(std::size_t count) const noexcept {
  if (is_of_blocks_) return count * blocks_.block_bytes;
  std::uint64_t bytes = 0;
  for (const list_part& part : parts_.subspan(posted_, count)) bytes += part.local.size();
  return bytes;
}

}  // namespace weft::net
