// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include <common/printable.hpp>
#include <nvme/bytes.hpp>
#include <nvme/subsystem.hpp>

namespace nvme {
namespace {

// FNV-1a: the same in every run, because a host that comes back looks whether the namespace is the one it knew.
std::uint64_t hash(std::string_view text, std::uint64_t seed) {
  std::uint64_t value = 0xcbf2'9ce4'8422'2325 ^ seed;
  for (const char each : text) value = (value ^ static_cast<unsigned char>(each)) * 0x0000'0100'0000'01b3;
  return value;
}

identifier identity_of(std::string_view nqn, std::uint32_t id) {
  identifier made{};
  store<std::uint64_t>(made, 0, hash(nqn, id));
  store<std::uint64_t>(made, 8, hash(nqn, std::uint64_t{id} << 32));
  return made;
}

void check_name(std::string_view nqn) {
  if (is_nqn(nqn)) return;
  throw std::invalid_argument(
      fmt::format("'{}' is not a qualified name: 'nqn.' and up to {} printable characters, such as "
                  "nqn.2024-01.org.example:disk",
                  common::printable(nqn), longest_nqn - 4));
}

}  // namespace

name_space::name_space(std::uint32_t id, std::unique_ptr<nvme::disk> behind, std::uint8_t block_shift,
                       const identifier& identity)
    : id_(id), disk_(std::move(behind)), block_shift_(block_shift), identity_(identity) {}

namespace_identity name_space::identify() const {
  return {.blocks = blocks(),
          .block_shift = block_shift_,
          .write_protected = disk_->read_only() ? std::uint8_t{1} : std::uint8_t{0},
          .id = identity_};
}

subsystem::subsystem(std::string nqn) : nqn_(std::move(nqn)), serial_(fmt::format("{:016x}", hash(nqn_, 0))) {
  check_name(nqn_);
  if (nqn_ == discovery_nqn) throw std::invalid_argument(fmt::format("{} is the name of discovery itself", nqn_));
}

void subsystem::add(std::unique_ptr<disk> behind, std::uint32_t block_bytes) {
  constexpr std::uint32_t largest = std::uint32_t{64} << 10;
  if (!std::has_single_bit(block_bytes) || block_bytes < 512 || block_bytes > largest)
    throw std::invalid_argument(
        fmt::format("a block of {} bytes: it has 512, 1024 and so on, up to {}", block_bytes, largest));
  const std::uint64_t size = behind->size();
  if (size == 0) throw std::invalid_argument(fmt::format("{} is empty", behind->describe()));
  if (size % block_bytes != 0)
    throw std::invalid_argument(fmt::format("{} has {} bytes, which is not a multiple of the block size {}",
                                            behind->describe(), size, block_bytes));
  if (namespaces_.size() == most_listed) throw std::invalid_argument(fmt::format("more than {} disks", most_listed));
  const auto id = static_cast<std::uint32_t>(namespaces_.size() + 1);
  const auto shift = static_cast<std::uint8_t>(std::countr_zero(block_bytes));
  namespaces_.emplace_back(id, std::move(behind), shift, identity_of(nqn_, id));
}

void subsystem::allow(std::string host) {
  check_name(host);
  allowed_.push_back(std::move(host));
}

bool subsystem::allows(std::string_view host) const noexcept {
  return allowed_.empty() || std::ranges::find(allowed_, host) != allowed_.end();
}

const name_space* subsystem::find(std::uint32_t id) const noexcept {
  return id == 0 || id > namespaces_.size() ? nullptr : &namespaces_[id - 1];
}

}  // namespace nvme
