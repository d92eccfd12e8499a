// SPDX-License-Identifier: Apache-2.0
// What a foreign peer is sent fits TCP's segments as they are now, RFC 5044 section 4.5.
#include <weft/net/iwarp/mpa.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "net/support.hpp"

namespace weft::test {
namespace {

using net::iwarp::mpa::mulpdu;

// Knows the connection's socket, of whose segments it is asked, and can say that they are of another size.
class segments : public system_calls {
 public:
  int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept override {
    const int result = system_calls::getsockopt(fd, level, name, value, length);
    if (level != IPPROTO_TCP || name != TCP_MAXSEG) return result;
    socket_ = fd;
    if (pretended_ != 0) *static_cast<int*>(value) = pretended_;
    return result;
  }

 protected:
  int socket_ = -1;
  int pretended_ = 0;
};

class segment_size : public segments, public net_test {
 protected:
  segment_size() : net_test(static_cast<system_calls&>(*this)) {}

  /// As the kernel has it.
  [[nodiscard]] std::size_t in_kernel() const {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    EXPECT_EQ(::getsockopt(socket_, IPPROTO_TCP, TCP_MAXSEG, &bytes, &length), 0);
    return static_cast<std::size_t>(bytes);
  }

  /// IP options take their room from each segment, so that TCP's segments shrink by so many bytes, a multiple of 4.
  void add_ip_options(std::size_t size) const {
    constexpr std::byte no_operation{1};
    std::array<std::byte, 40> all{};
    all.fill(no_operation);
    EXPECT_EQ(::setsockopt(socket_, IPPROTO_IP, IP_OPTIONS, all.data(), static_cast<socklen_t>(size)), 0);
  }

  /// Sends a message of many segments, whose FPDUs are the largest that fit one of `segment` bytes.
  task<> expect_segments_of(std::size_t segment, net::connection& from, raw_peer& to) {
    constexpr std::size_t header = net::iwarp::untagged_header::bytes;
    constexpr std::size_t message_bytes = 4096;
    auto payload = co_await pool().allocate(message_bytes);
    co_await from.send(std::move(payload));
    for (std::size_t received = 0; received < message_bytes;) {
      const bytes ulpdu = co_await to.receive_fpdu();
      if (ulpdu.size() <= header) throw error(errc::malformed, "an FPDU without payload");
      received += ulpdu.size() - header;
      EXPECT_LE(ulpdu.size(), mulpdu(segment));
      if (received < message_bytes) {
        EXPECT_GT(ulpdu.size() + 8, mulpdu(segment)) << "there was room for more";
      }
    }
  }
};

TEST_F_AGAINST_RAW(segment_size, that_changes_in_the_kernel_changes_the_fpdus_of_the_next_message,
                   {.greeting = nothing, .segment_bytes = 536}) {
  const std::size_t usual = in_kernel();
  co_await expect_segments_of(usual, peer, raw);
  add_ip_options(40);
  EXPECT_EQ(in_kernel(), usual - 40);
  co_await expect_segments_of(usual - 40, peer, raw);
  add_ip_options(0);
  EXPECT_EQ(in_kernel(), usual);
  co_await expect_segments_of(usual, peer, raw);
}

TEST_F_AGAINST_RAW(segment_size, that_shrinks_and_grows_by_much_is_followed, {.greeting = nothing}) {
  for (const int bytes : {1460, 500, 8960, 150, 1448, 60}) {
    pretended_ = bytes;
    co_await expect_segments_of(static_cast<std::size_t>(bytes), peer, raw);
  }
}

}  // namespace
}  // namespace weft::test
