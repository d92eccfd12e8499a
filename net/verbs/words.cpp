// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/arena.hpp>
#include <weft/net/link/peer_words.hpp>
#include <weft/net/verbs/words.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <span>
#include <vector>

namespace weft::net::verbs {
namespace {

// Reasons of a rejection: InfiniBand specification, 12.6.7.2. An iWARP device reports -errno instead.
constexpr int rejected_no_listener = 8;
constexpr int rejected_by_user = 28;

// Strips the zeros that the connection manager appends.
std::span<const std::byte> without_padding(std::span<const std::byte> bytes) {
  while (!bytes.empty() && bytes.back() == std::byte{0}) bytes = bytes.first(bytes.size() - 1);
  return bytes;
}

error rejection(const cm_event& what, const std::string& step) {
  if (what.status == rejected_no_listener || what.status == -ECONNREFUSED || what.status == ECONNREFUSED) {
    return system_error(ECONNREFUSED, step);
  }
  if (what.status != rejected_by_user && what.status != -ECONNRESET) {
    return error(errc::peer_rejected, fmt::format("{} (reason {})", step, what.status));
  }
  return net::rejection(without_padding(what.said()), step);
}

error described(errc code, const char* before, const ibv_wc& what) noexcept try {
  return error(code, fmt::format("{}{} (vendor error {:#x})", before, ibv_wc_status_str(what.status), what.vendor_err));
} catch (const std::bad_alloc&) {
  return weft::detail::make_error(code);
}

// The error at the target of a refused access; the device reports nothing more to the target.
error broken_off() noexcept {
  return weft::detail::make_error(errc::protocol_error,
                                  "the device has ended the connection, as it does after refusing an access");
}

}  // namespace

std::string words_for_no_device(const std::string& of_kernel) {
  std::vector<std::string> names;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(of_kernel, unreadable)) {
    names.push_back(entry.path().filename());
  }
  if (names.empty()) return "this machine has no RDMA device: see rdma-link(8)";
  std::sort(names.begin(), names.end());
  return fmt::format(
      "the kernel has {}, but there is no file for it in /dev/infiniband: load the module ib_uverbs, and give a "
      "container its files (--device /dev/infiniband)",
      fmt::join(names, " "));
}

std::string advice_for_opening(int number, const std::string& file) {
  if (number == EACCES || number == EPERM) return fmt::format(" (may this user open /dev/infiniband/{}?)", file);
  // ibv_open_device(3) looks elsewhere for a file that it may not open, and then reports ENOENT.
  if (number == ENOENT) return fmt::format(" (is /dev/infiniband/{} there, and may this user open it?)", file);
  return {};
}

error failure_of(const cm_event& what, const std::string& step) {
  const std::string text = fmt::format("{} ({})", step, rdma_event_str(what.type));
  switch (what.type) {
    case RDMA_CM_EVENT_REJECTED:
      return rejection(what, step);
    case RDMA_CM_EVENT_DISCONNECTED:
      return error(errc::peer_vanished, text);
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return system_error(ENODEV, text);
    case RDMA_CM_EVENT_UNREACHABLE:
      if (what.status == 0 || what.status == -ETIMEDOUT) return error(errc::timed_out, text);
      break;
    default:
      break;
  }
  const int number = what.status < 0 ? -what.status : what.status;
  return number == 0 ? error(errc::protocol_error, text) : system_error(number, text);
}

// ENOMEM is nearly always the limit on locked memory, and nobody guesses that.
error failure_of_registration(int number, const std::string& what) {
  if (number != ENOMEM) return system_error(number, what);
  const auto limit = mr::locked_memory_limit();
  if (!limit) return error(errc::no_memory, what);
  return error(
      errc::no_memory,
      fmt::format("{}: the locked-memory limit is {} bytes (ulimit -l); raise it, or register less", what, *limit));
}

error device_removed(const std::string& device) noexcept try {
  return error(errc::connection_failed, fmt::format("the RDMA device {} was removed", device));
} catch (const std::bad_alloc&) {
  return weft::detail::make_error(errc::connection_failed, "the RDMA device was removed");
}

error failure_of_request(const ibv_wc& what) noexcept {
  switch (what.status) {
    case IBV_WC_RETRY_EXC_ERR:
      return described(errc::peer_vanished, "no acknowledgement: ", what);
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return described(errc::not_receiving, "the peer has no receive: ", what);
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      // When a process dies, the kernel may deregister its memory before it destroys its queue pairs.
      return described(errc::remote_access, "the peer has not opened that memory, or its process has ended: ", what);
    case IBV_WC_WR_FLUSH_ERR:
      return broken_off();
    default:
      return described(errc::connection_failed, "", what);
  }
}

error failure_of_receive(const ibv_wc& what) noexcept {
  return what.status == IBV_WC_WR_FLUSH_ERR ? broken_off() : described(errc::protocol_error, "", what);
}

error failure_of_post(int number, const char* what) noexcept {
  if (number == ENOTCONN) return weft::detail::make_error(errc::peer_vanished, what);
  return weft::detail::make_system_error(number, what);
}

std::optional<error> failure_of(ibv_event_type what, const std::string& device) noexcept {
  const auto failed = [&](errc code, const char* words) noexcept {
    try {
      return error(code, fmt::format("{} {} ({})", device, words, ibv_event_type_str(what)));
    } catch (const std::bad_alloc&) {
      return weft::detail::make_error(code, words);
    }
  };
  switch (what) {
    case IBV_EVENT_DEVICE_FATAL:
      return failed(errc::connection_failed, "has failed or was removed");
    case IBV_EVENT_CQ_ERR:
      return failed(errc::connection_failed, "has lost completions");
    case IBV_EVENT_SRQ_ERR:
      return failed(errc::connection_failed, "has lost shared receives");
    case IBV_EVENT_QP_FATAL:
      return failed(errc::connection_failed, "has ended the queue pair");
    case IBV_EVENT_QP_REQ_ERR:
      return failed(errc::protocol_error, "has refused a request of the peer");
    case IBV_EVENT_QP_ACCESS_ERR:
      return failed(errc::protocol_error, "has refused an access of the peer");
    default:
      return std::nullopt;
  }
}

}  // namespace weft::net::verbs
