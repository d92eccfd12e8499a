// SPDX-License-Identifier: Apache-2.0
// A controller that speaks NVMe over Fabrics by the letter, until a test has it say something else: for tests of the
// host.
#pragma once

#include <weft/weft.hpp>

#include <map>

#include "kit/standard.hpp"
#include <nvme/bytes.hpp>
#include <nvme/command.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/identify.hpp>

namespace nvme::test {

using namespace weft;

inline const std::string false_nqn = "nqn.2024-01.org.example:false";

/// What the controller is about to say to a command.
struct reply {
  std::uint16_t queue = 0;
  command asked;
  completion said{};
  std::vector<std::byte> data{};  ///< for the host's memory
  std::optional<std::uint64_t> invalidate{};
  std::size_t bytes = completion_bytes;  ///< of the completion's capsule
  int times = 1;                         ///< 0: it says nothing
};

/// One namespace of zeroes.
class false_controller {
 public:
  explicit false_controller(net::device& device) : device_(device) {
    identity.controller = 7;
    identity.sgls = sgl_support::supported | sgl_support::keyed | sgl_support::in_capsule_offset;
    identity.command_capsule_bytes = command_bytes + 1024;
    identity.completion_capsule_bytes = completion_bytes;
    disk.blocks = 1000;
  }

  /// Serves those who come until `from` is closed.
  task<> serve(net::listener& from) {
    const auto all = [&](scope& peers) -> task<> {
      while (auto request = co_await from.next()) peers.spawn(attend(std::move(*request)));
    };
    const auto ignore = [](const report&) noexcept {};  // how a host leaves is the host's affair
    co_await with_scope(ignore, all);
  }

  // What it is like.
  std::vector<std::byte> accepts_with = as_vector(encoded(cm_reply{.receive_queue_size = 64}));
  std::optional<std::vector<std::byte>> rejects_with;
  controller_identity identity;
  namespace_identity disk;
  std::map<std::uint32_t, std::uint64_t> properties{
      {property::capabilities, encode(controller_capabilities{.max_queue_entries = 63, .ready_timeout = 2})},
      {property::version, nvme_version},
      {property::controller_status, controller_status::ready}};
  /// Called before each reply, which it may change.
  std::function<void(reply&)> change = [](reply&) {};

  // What it has seen.
  std::map<std::uint16_t, net::connection*> links;  ///< by queue, while they are connected
  int keep_alives = 0;

  template <class Bytes>
  [[nodiscard]] static std::vector<std::byte> as_vector(const Bytes& from) {
    return {from.begin(), from.end()};
  }

 private:
  task<> attend(net::connection_request request) {
    const auto wanted = try_decode<cm_request>(request.private_data());
    if (rejects_with || !wanted) {
      const std::span<const std::byte> said =
          rejects_with ? std::span<const std::byte>(*rejects_with) : std::span<const std::byte>();
      co_await request.reject(said);
      co_return;
    }
    const net::connection_options how{
        .receive_size = 64 * 1024, .receive_depth = 64, .profile = net::profile::interop, .private_data = accepts_with};
    auto link = co_await request.accept(how);
    links[wanted->queue_id] = &link;
    std::exception_ptr failure;
    try {
      while (auto capsule = co_await link.recv()) co_await answer(link, wanted->queue_id, std::move(*capsule));
    } catch (...) {
      failure = std::current_exception();
    }
    links.erase(wanted->queue_id);
    if (failure) std::rethrow_exception(failure);
    co_await link.close();
  }

  task<> answer(net::connection& link, std::uint16_t queue, net::message capsule) {
    reply made{.queue = queue, .asked = decode_command(capsule.bytes())};
    made.said.id = made.asked.id;
    prepare(made);
    const bool revokes = made.asked.data.type == sgl_type::host_memory_invalidate && made.asked.data.length > 0;
    if (revokes && link.capabilities().invalidate) made.invalidate = made.asked.data.key;
    change(made);
    if (made.times > 0 && !made.data.empty()) {
      auto memory = co_await device_.allocate(made.data.size());
      std::ranges::copy(made.data, memory.data());
      const mr::remote_slice target(made.asked.data.key, made.asked.data.address, made.data.size(),
                                    mr::usage::write_dst);
      co_await link.write(std::move(memory), target);
    }
    for (int i = 0; i < made.times; ++i) {
      std::vector<std::byte> words(std::max(made.bytes, completion_bytes));
      encode(made.said, words);
      words.resize(made.bytes);
      const auto revoked = i == 0 ? made.invalidate : std::nullopt;
      co_await link.send_bytes(words, {.invalidate = revoked});
    }
  }

  void prepare(reply& made) {
    if (made.asked.opcode == fabrics_opcode) {
      if (made.asked.type() == fabrics_type::connect) made.said.result = identity.controller;
      if (made.asked.type() == fabrics_type::property_get)
        made.said.result = properties[fields_of<property_fields>(made.asked).offset];
      return;
    }
    if (made.queue != 0) {
      if (made.asked.opcode == static_cast<std::uint8_t>(io_opcode::read)) made.data.resize(made.asked.data.length);
      return;
    }
    switch (static_cast<admin_opcode>(made.asked.opcode)) {
      case admin_opcode::identify:
        identify(made);
        break;
      case admin_opcode::set_features:
        made.said.result = fields_of<feature_fields>(made.asked).value;
        break;
      case admin_opcode::get_log_page:
        made.data.resize(made.asked.data.length);
        break;
      case admin_opcode::keep_alive:
        ++keep_alives;
        break;
      default:
        break;
    }
  }
  void identify(reply& made) const {
    made.data.resize(identify_bytes);
    switch (static_cast<identify_structure>(fields_of<identify_fields>(made.asked).structure)) {
      case identify_structure::controller:
        encode(identity, made.data);
        break;
      case identify_structure::name_space:
        encode(disk, made.data);
        break;
      case identify_structure::active_namespaces:
        if (made.asked.nsid < 1) encode_namespace_list(std::array{std::uint32_t{1}}, made.data);
        break;
      default:
        break;
    }
  }

  net::device& device_;
};

}  // namespace nvme::test
