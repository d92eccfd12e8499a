// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/registration.hpp>
#include <weft/net/link/join.hpp>
#include <weft/net/link/little_endian.hpp>

#include <algorithm>

namespace weft::net::rails {
namespace {

using little_endian::get;
using little_endian::put;

constexpr std::array<std::byte, 4> join_name{std::byte{'w'}, std::byte{'f'}, std::byte{'t'}, std::byte{'r'}};
constexpr std::byte join_version{1};

}  // namespace

std::array<std::byte, join::bytes> join::pack() const noexcept {
  std::array<std::byte, bytes> out{};
  std::copy(join_name.begin(), join_name.end(), out.begin());
  out[4] = join_version;
  put(out, 5, rail);
  put(out, 6, fabric);
  put(out, 8, epoch);
  std::copy(id.begin(), id.end(), out.begin() + 12);
  put(out, 28, landing.key);
  put(out, 32, landing.address);
  return out;
}

std::optional<join> join::unpack(std::span<const std::byte> private_data) noexcept {
  if (private_data.size() < bytes || !std::equal(join_name.begin(), join_name.end(), private_data.begin())) {
    return std::nullopt;
  }
  if (private_data[4] != join_version) return std::nullopt;
  join said;
  said.rail = get<std::uint8_t>(private_data, 5);
  said.fabric = get<std::uint8_t>(private_data, 6);
  said.epoch = get<std::uint32_t>(private_data, 8);
  std::copy_n(private_data.begin() + 12, said.id.size(), said.id.begin());
  said.landing.key = get<std::uint32_t>(private_data, 28);
  said.landing.address = get<std::uint64_t>(private_data, 32);
  if (said.rail >= max_rails || said.fabric >= mr::max_fabrics) return std::nullopt;
  return said;
}

}  // namespace weft::net::rails
