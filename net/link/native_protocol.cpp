// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/native_protocol.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

namespace weft::net {
namespace {

constexpr std::array<std::byte, 4> magic = {std::byte{'w'}, std::byte{'e'}, std::byte{'f'}, std::byte{'t'}};
constexpr std::size_t newest_at = 4;
constexpr std::size_t oldest_at = 13;
constexpr std::size_t fabric_at = 14;

constexpr unsigned atomics_bit = 0x01;
constexpr unsigned immediate_bit = 0x02;
constexpr unsigned large_frames_bit = 0x04;
constexpr unsigned listens_first_bit = 0x08;
constexpr unsigned heartbeats_bit = 0x10;
constexpr unsigned rails_bit = 0x20;
constexpr unsigned resumes_bit = 0x40;
constexpr unsigned device_memory_bit = 0x80;

constexpr std::size_t more_features_at = 15;
constexpr unsigned write_notices_bit = 0x01;
constexpr unsigned persistent_flush_bit = 0x02;
constexpr unsigned atomic_write_bit = 0x04;

std::byte pack_features(const native_features& features) noexcept {
  return static_cast<std::byte>((features.atomics ? atomics_bit : 0) | (features.immediate ? immediate_bit : 0) |
                                (features.large_frames ? large_frames_bit : 0) | (features.rails ? rails_bit : 0) |
                                (features.resumes ? resumes_bit : 0) |
                                (features.device_memory ? device_memory_bit : 0));
}

std::byte pack_more_features(const native_features& features) noexcept {
  return static_cast<std::byte>((features.write_notices ? write_notices_bit : 0) |
                                (features.persistent_flush ? persistent_flush_bit : 0) |
                                (features.atomic_write ? atomic_write_bit : 0));
}

native_features unpack_features(std::byte packed) noexcept {
  const auto bits = std::to_integer<unsigned>(packed);
  return {.atomics = (bits & atomics_bit) != 0,
          .immediate = (bits & immediate_bit) != 0,
          .large_frames = (bits & large_frames_bit) != 0,
          .rails = (bits & rails_bit) != 0,
          .resumes = (bits & resumes_bit) != 0,
          .device_memory = (bits & device_memory_bit) != 0};
}

// Returns the versions of a peer whose private data begins with the magic; else nothing.
std::optional<version_range> versions_in(std::span<const std::byte> private_data) noexcept {
  if (private_data.size() <= oldest_at || !std::equal(magic.begin(), magic.end(), private_data.begin())) {
    return std::nullopt;
  }
  version_range said;
  said.newest = std::to_integer<std::uint8_t>(private_data[newest_at]);
  said.oldest = std::to_integer<std::uint8_t>(private_data[oldest_at]);
  if (said.oldest == 0 || said.oldest > said.newest) said.oldest = said.newest;
  return said;
}

bool has_common(const version_range& said) noexcept {
  return said.oldest <= spoken_versions.newest && spoken_versions.oldest <= said.newest;
}

}  // namespace

std::array<std::byte, greeting::bytes> greeting::pack() const noexcept {
  std::array<std::byte, bytes> packed{};
  std::copy(magic.begin(), magic.end(), packed.begin());
  packed[newest_at] = std::byte{spoken_versions.newest};
  packed[oldest_at] = std::byte{spoken_versions.oldest};
  packed[5] = pack_features(features);
  if (listens_first) packed[5] |= std::byte{listens_first_bit};
  if (answers_heartbeats) packed[5] |= std::byte{heartbeats_bit};
  little_endian::put(packed, 6, receive_depth);
  little_endian::put(packed, 8, receive_size);
  packed[12] = std::byte{user_bytes};
  packed[fabric_at] = std::byte{fabric};
  packed[more_features_at] = pack_more_features(features);
  little_endian::put(packed, 16, landing.key);
  little_endian::put(packed, 20, landing.address);
  return packed;
}

std::optional<greeting> greeting::unpack(std::span<const std::byte> private_data) noexcept {
  if (private_data.size() < bytes) return std::nullopt;
  const auto versions = versions_in(private_data);
  if (!versions || !has_common(*versions)) return std::nullopt;
  greeting said;
  said.features = unpack_features(private_data[5]);
  const auto more = std::to_integer<unsigned>(private_data[more_features_at]);
  said.features.write_notices = (more & write_notices_bit) != 0;
  said.features.persistent_flush = (more & persistent_flush_bit) != 0;
  said.features.atomic_write = (more & atomic_write_bit) != 0;
  said.listens_first = (private_data[5] & std::byte{listens_first_bit}) != std::byte{0};
  said.answers_heartbeats = (private_data[5] & std::byte{heartbeats_bit}) != std::byte{0};
  said.receive_depth = little_endian::get<std::uint16_t>(private_data, 6);
  said.receive_size = little_endian::get<std::uint32_t>(private_data, 8);
  said.user_bytes = std::to_integer<std::uint8_t>(private_data[12]);
  said.fabric = std::to_integer<std::uint8_t>(private_data[fabric_at]);
  said.landing.key = little_endian::get<std::uint32_t>(private_data, 16);
  said.landing.address = little_endian::get<std::uint64_t>(private_data, 20);
  if (said.user_bytes > private_data.size() - bytes) return std::nullopt;
  if (said.receive_depth == 0 || said.receive_size > largest_receive_size) return std::nullopt;
  return said;
}

std::optional<version_range> greeting::other_versions(std::span<const std::byte> private_data) noexcept {
  const auto versions = versions_in(private_data);
  return versions && !has_common(*versions) ? versions : std::nullopt;
}

std::span<const std::byte> greeting::user_data(std::span<const std::byte> private_data) noexcept {
  const auto said = unpack(private_data);
  return said ? private_data.subspan(bytes, said->user_bytes) : private_data;
}

greeting_frame::greeting_frame(const connection_options& options, const native_features& features,
                               const landing_place& landing, bool listens_first, std::size_t fabric) {
  const bool greets = options.profile == profile::native;
  const std::size_t room = greets ? max_private_data : max_interop_private_data;
  if (options.private_data.size() > room) {
    throw error(errc::invalid_argument,
                fmt::format("{} bytes of private data: there is room for {}", options.private_data.size(), room));
  }
  if (greets) {
    greeting self;
    self.receive_depth = options.receive_depth;
    self.receive_size = options.receive_size;
    self.user_bytes = static_cast<std::uint8_t>(options.private_data.size());
    self.features = features;
    self.features.device_memory = options.device_memory;
    self.features.persistent_flush = options.persistent_flush;
    self.features.write_notices = true;
    self.listens_first = listens_first;
    self.answers_heartbeats = true;
    self.landing = landing;
    self.fabric = static_cast<std::uint8_t>(fabric);
    const auto packed = self.pack();
    std::copy(packed.begin(), packed.end(), storage.begin());
    greeting_size = greeting::bytes;
  }
  std::copy(options.private_data.begin(), options.private_data.end(),
            std::span(storage).subspan(greeting_size).begin());
  size = greeting_size + options.private_data.size();
}

}  // namespace weft::net
