// SPDX-License-Identifier: Apache-2.0
// A host that speaks NVMe over Fabrics by the letter, or against it, for tests of the target.
#pragma once

#include <weft/weft.hpp>

#include "beside.hpp"
#include "kit/test.hpp"
#include <nvme/bytes.hpp>
#include <nvme/command.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/identify.hpp>

namespace nvme::test {

using namespace weft;

inline const std::string disk_nqn = "nqn.2024-01.org.example:disk";
inline const std::string host_nqn = "nqn.2024-01.org.example:host";

[[nodiscard]] inline identifier some_host_id() { return {std::byte{0x11}, std::byte{0x22}}; }

/// What a completion said, with the key that it has revoked.
struct answer {
  completion said;
  std::optional<std::uint64_t> revoked;
};

/// One queue: a connection.
struct raw_queue {
  net::connection link;
  std::uint16_t number = 0;
  std::uint16_t entries = 0;
  std::uint16_t last_id = 0;
  std::uint16_t head = 0;

  task<> send(command what, std::span<const std::byte> in_capsule = {}) {
    std::vector<std::byte> capsule(command_bytes + in_capsule.size());
    encode(what, capsule);
    std::ranges::copy(in_capsule, capsule.begin() + command_bytes);
    co_await link.send_bytes(capsule);
  }
  task<answer> hear() {
    auto message = co_await link.recv_or_throw();
    answer heard{.said = decode_completion(message.bytes()), .revoked = message.invalidated_key};
    head = static_cast<std::uint16_t>((head + 1) % entries);
    EXPECT_EQ(heard.said.queue_head, head);
    co_return heard;
  }
  /// Sends a command under a fresh id, and waits for its completion, with no other under way.
  task<answer> ask(command what, std::span<const std::byte> in_capsule = {}) {
    what.id = ++last_id;
    co_await send(what, in_capsule);
    const answer heard = co_await hear();
    EXPECT_EQ(heard.said.id, what.id);
    co_return heard;
  }
  task<status> status_of(command what, std::span<const std::byte> in_capsule = {}) {
    const answer heard = co_await ask(what, in_capsule);
    co_return heard.said.status;
  }
  /// Waits until the target has ended it.
  task<> hear_end() {
    const auto next = [&] { return link.recv(); };
    static_cast<void>(co_await weft::test::goes_in_order(next));
  }
};

[[nodiscard]] inline command io_command(io_opcode opcode, std::uint32_t nsid = 1) {
  command made{.opcode = static_cast<std::uint8_t>(opcode), .nsid = nsid};
  return made;
}
[[nodiscard]] inline command blocks_command(io_opcode opcode, const block_fields& where, std::uint32_t nsid = 1) {
  command made = io_command(opcode, nsid);
  put(made, where);
  return made;
}
[[nodiscard]] inline command admin_command(admin_opcode opcode, std::uint32_t nsid = 0) {
  command made{.opcode = static_cast<std::uint8_t>(opcode), .nsid = nsid};
  return made;
}
[[nodiscard]] inline command fabrics_command(fabrics_type type) {
  command made{.opcode = fabrics_opcode, .nsid = static_cast<std::uint32_t>(type)};
  return made;
}

[[nodiscard]] inline sgl describe(const mr::remote_region& memory, std::size_t length, sgl_type type,
                                  std::size_t offset = 0) {
  return {.type = type,
          .address = memory.address() + offset,
          .length = static_cast<std::uint32_t>(length),
          .key = static_cast<std::uint32_t>(memory.key())};
}

/// Memory of the host's, which its peers may read and write.
struct host_memory {
  mr::region region;

  static task<host_memory> make(net::device& device, std::size_t bytes) {
    auto made = co_await device.register_memory(std::vector<std::byte>(bytes),
                                                {.usage = mr::usage::read_src | mr::usage::write_dst});
    host_memory memory{.region = std::move(made)};
    co_return memory;
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return region.bytes(); }
  [[nodiscard]] sgl describe(std::size_t length, std::size_t offset = 0) const {
    return test::describe(region.remote(), length, sgl_type::host_memory, offset);
  }
};

[[nodiscard]] inline sgl in_capsule(std::size_t length, std::size_t offset = 0) {
  return {.type = sgl_type::in_capsule, .address = offset, .length = static_cast<std::uint32_t>(length), .key = 0};
}

// ---- commands ----

[[nodiscard]] inline command with_data(command made, const sgl& data) {
  made.data = data;
  return made;
}
template <class Fields>
[[nodiscard]] command with(command made, const Fields& fields) {
  put(made, fields);
  return made;
}
/// With what `change(command&)` makes of it.
template <class Change>
[[nodiscard]] command changed(command made, const Change& change) {
  change(made);
  return made;
}

[[nodiscard]] inline command write_of(const block_fields& where, const sgl& data) {
  return with_data(blocks_command(io_opcode::write, where), data);
}
[[nodiscard]] inline command read_into(const block_fields& where, const sgl& data) {
  return with_data(blocks_command(io_opcode::read, where), data);
}
[[nodiscard]] inline command set_feature(feature which, std::uint32_t value) {
  const feature_fields fields{.feature = static_cast<std::uint8_t>(which), .value = value};
  return with(admin_command(admin_opcode::set_features), fields);
}
/// What a host says of itself. With a constructor, because of GCC 12 (docs/gcc-12.md).
struct host_words {
  host_words() {}
  std::string subsystem = disk_nqn;
  std::string host = host_nqn;
  identifier host_id = some_host_id();
  std::uint32_t keep_alive_ms = 120'000;
};

[[nodiscard]] inline task<raw_queue> dial_with(net::device& device, std::string address,
                                               std::span<const std::byte> private_data, std::uint16_t number,
                                               std::uint16_t entries) {
  const net::connection_options how{.receive_size = completion_bytes,
                                    .receive_depth = static_cast<std::uint16_t>(2 * entries),
                                    .profile = net::profile::interop,
                                    .private_data = private_data};
  auto link = co_await device.connect(std::move(address), how);
  raw_queue made{.link = std::move(link), .number = number, .entries = entries};
  co_return made;
}

[[nodiscard]] inline task<raw_queue> dial(net::device& device, std::string address, std::uint16_t number,
                                          std::uint16_t entries) {
  const auto words = encoded(cm_request{
      .queue_id = number, .receive_queue_size = entries, .send_queue_size = static_cast<std::uint16_t>(entries - 1)});
  raw_queue made = co_await dial_with(device, std::move(address), words, number, entries);
  const auto reply = try_decode<cm_reply>(made.link.peer_private_data());
  EXPECT_TRUE(reply && reply->receive_queue_size == entries);
  co_return made;
}

/// The command Connect for a queue, with data in its capsule.
[[nodiscard]] inline command connect_command(const raw_queue& over, const host_words& who) {
  command made = fabrics_command(fabrics_type::connect);
  made.data = in_capsule(connect_data::bytes);
  put(made, connect_fields{.queue_id = over.number,
                           .queue_size = static_cast<std::uint16_t>(over.entries - 1),
                           .keep_alive_ms = over.number == 0 ? who.keep_alive_ms : 0});
  return made;
}
[[nodiscard]] inline connect_data data_of_connect(const host_words& who, std::uint16_t controller) {
  return {.host_id = who.host_id, .controller = controller, .subsystem = who.subsystem, .host = who.host};
}
[[nodiscard]] inline task<answer> send_connect(raw_queue& over, const host_words& who, std::uint16_t controller) {
  const auto bytes = encoded(data_of_connect(who, controller));
  const command asked = connect_command(over, who);
  co_return co_await over.ask(asked, bytes);
}

[[nodiscard]] inline command set_configuration(std::uint32_t value) {
  command made = fabrics_command(fabrics_type::property_set);
  put(made, property_fields{.offset = property::configuration, .value = value});
  return made;
}
[[nodiscard]] inline command get_property(std::uint32_t offset, bool wide = false) {
  command made = fabrics_command(fabrics_type::property_get);
  put(made, property_fields{.wide = wide ? std::uint8_t{1} : std::uint8_t{0}, .offset = offset});
  return made;
}
inline constexpr std::uint32_t enabled = configuration::enable | configuration::entry_sizes;

/// A host that is connected: an admin queue, and maybe I/O queues.
class connected_host {
 public:
  connected_host(raw_queue queue, host_memory space, std::uint16_t number)
      : admin(std::move(queue)), memory(std::move(space)), controller(number) {}

  raw_queue admin;
  std::vector<raw_queue> io;
  host_memory memory;
  std::uint16_t controller;
};

[[nodiscard]] inline command identify_command(connected_host& host, std::uint8_t structure, std::uint32_t nsid = 0,
                                              std::size_t bytes = identify_bytes) {
  const command asked = with(admin_command(admin_opcode::identify, nsid), identify_fields{.structure = structure});
  return with_data(asked, host.memory.describe(bytes));
}
[[nodiscard]] inline command log_command(connected_host& host, const log_fields& what) {
  const command asked = with(admin_command(admin_opcode::get_log_page), what);
  return with_data(asked, host.memory.describe(static_cast<std::size_t>(what.bytes)));
}
/// A read of blocks of 512 bytes to the beginning of the host's memory.
[[nodiscard]] inline command read_of(connected_host& host, const block_fields& where, std::uint32_t nsid = 1) {
  return with_data(blocks_command(io_opcode::read, where, nsid), host.memory.describe(512UL * where.count));
}

inline constexpr std::size_t host_memory_bytes = std::size_t{1} << 20;

/// Connects an admin queue and enables the controller.
[[nodiscard]] inline task<connected_host> connect_host(net::device& device, std::string address, host_words who = {}) {
  auto queue = co_await dial(device, address, 0, admin_queue_entries);
  const answer connected = co_await send_connect(queue, who, any_controller);
  EXPECT_EQ(connected.said.status, status::success);
  EXPECT_EQ(co_await queue.status_of(set_configuration(enabled)), status::success);
  EXPECT_EQ((co_await queue.ask(get_property(property::controller_status))).said.result, controller_status::ready);
  auto memory = co_await host_memory::make(device, host_memory_bytes);
  connected_host made(std::move(queue), std::move(memory), static_cast<std::uint16_t>(connected.said.result));
  co_return std::move(made);
}

/// Connects an I/O queue besides.
[[nodiscard]] inline task<> add_queue(connected_host& host, net::device& device, std::string address,
                                      std::uint16_t number, std::uint16_t entries = 16, host_words who = {}) {
  auto queue = co_await dial(device, std::move(address), number, entries);
  EXPECT_EQ((co_await send_connect(queue, who, host.controller)).said.status, status::success);
  host.io.push_back(std::move(queue));
}

}  // namespace nvme::test
