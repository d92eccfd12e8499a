// SPDX-License-Identifier: Apache-2.0
// The other end of kv's Valkey over RDMA, with librdmacm and libibverbs alone, as the protocol's description has it:
//
//   valkey_peer ask ADDRESS PORT      a client of `kv serve --valkey ADDRESS:PORT`
//   valkey_peer answer ADDRESS PORT   a server for `kv set` and then `kv get`, of the key colour, which becomes blue
//
// It sends no private data, has 1024 receives and no flow control, and as a server it does not let kv run out of any
// (rnr_retry_count 0), like Valkey's own. What it is told that the description does not have ends it with words.
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>

#include <cstdio>

#include "kit/standard.hpp"

namespace {

constexpr unsigned receives = 1024;
constexpr std::size_t message_bytes = 32;
constexpr int patience_ms = 20'000;

using message = std::array<std::uint8_t, message_bytes>;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }
void require(bool holds, const std::string& what) {
  if (!holds) fail(what);
}
template <class Pointer>
Pointer* made(Pointer* result, const char* what) {
  if (result == nullptr) fail(std::string(what) + ": " + std::strerror(errno));
  return result;
}
void succeed(int result, const char* what) {
  if (result != 0) fail(std::string(what) + ": " + std::strerror(result > 0 ? result : errno));
}

// Big-endian, in the bytes from `begin` to before `end`.
void put(message& into, std::size_t begin, std::size_t end, std::uint64_t number) {
  for (; end > begin; number >>= 8) into[--end] = static_cast<std::uint8_t>(number & 0xff);
}
std::uint64_t get(const message& from, std::size_t begin, std::size_t end) {
  std::uint64_t number = 0;
  for (; begin < end; ++begin) number = number << 8 | from[begin];
  return number;
}
message of_kind(std::uint16_t kind) {
  message made_one{};
  put(made_one, 0, 2, kind);
  return made_one;
}
message announcement(std::uint64_t address, std::uint32_t length, std::uint32_t key) {
  message said = of_kind(3);
  put(said, 16, 24, address);
  put(said, 24, 28, length);
  put(said, 28, 32, key);
  return said;
}

// What a channel of the connection manager says next, which has to be this.
rdma_cm_id* expect(rdma_event_channel* channel, rdma_cm_event_type wanted) {
  pollfd ready{.fd = channel->fd, .events = POLLIN, .revents = 0};
  require(poll(&ready, 1, patience_ms) == 1, std::string("waited in vain for ") + rdma_event_str(wanted));
  rdma_cm_event* event = nullptr;
  succeed(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
  rdma_cm_id* const id = event->id;
  const rdma_cm_event_type kind = event->event;
  const std::size_t said = kind == RDMA_CM_EVENT_CONNECT_REQUEST ? event->param.conn.private_data_len : 0;
  bool silent = true;
  for (std::size_t i = 0; i < said; ++i)
    silent = silent && static_cast<const char*>(event->param.conn.private_data)[i] == 0;
  succeed(rdma_ack_cm_event(event), "rdma_ack_cm_event");
  require(kind == wanted, std::string("instead of ") + rdma_event_str(wanted) + " came " + rdma_event_str(kind));
  require(silent, "the client sends private data");
  return id;
}

rdma_conn_param parameters(std::uint8_t rnr_retries) {
  rdma_conn_param made_ones{};
  made_ones.responder_resources = 1;
  made_ones.initiator_depth = 1;
  made_ones.retry_count = 5;
  made_ones.rnr_retry_count = rnr_retries;
  return made_ones;
}

/// One connection, on an id that has its address.
class peer : private weft::test::immovable {
 public:
  peer(rdma_cm_id* id, std::uint32_t room) : id_(id), room_(room), said_(receives) {
    domain_ = made(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
    queue_ = made(ibv_create_cq(id->verbs, 4 * receives, nullptr, nullptr, 0), "ibv_create_cq");
    ibv_qp_init_attr wanted{};
    wanted.cap = {
        .max_send_wr = receives, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    wanted.qp_type = IBV_QPT_RC;
    wanted.send_cq = wanted.recv_cq = queue_;
    succeed(rdma_create_qp(id, domain_, &wanted), "rdma_create_qp");
    constexpr int open = int{IBV_ACCESS_LOCAL_WRITE} | int{IBV_ACCESS_REMOTE_WRITE} | int{IBV_ACCESS_REMOTE_READ};
    room_key_ = made(ibv_reg_mr(domain_, room_.data(), room_.size(), open), "ibv_reg_mr");
    said_key_ =
        made(ibv_reg_mr(domain_, said_.data(), said_.size() * message_bytes, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    out_key_ = made(ibv_reg_mr(domain_, out_.data(), out_.size(), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    for (std::size_t i = 0; i < receives; ++i) post_receive(i);
  }
  ~peer() {
    rdma_destroy_qp(id_);
    for (ibv_mr* key : {room_key_, said_key_, out_key_}) ibv_dereg_mr(key);
    ibv_destroy_cq(queue_);
    ibv_dealloc_pd(domain_);
    rdma_destroy_id(id_);
  }

  void send(const message& what, std::size_t bytes = message_bytes) {
    std::copy(what.begin(), what.end(), out_.begin());
    post({.opcode = IBV_WR_SEND, .bytes = bytes, .number = 0, .address = 0});
  }
  void announce() {
    come_ = 0;
    send(announcement(reinterpret_cast<std::uintptr_t>(room_.data()), static_cast<std::uint32_t>(room_.size()),
                      room_key_->rkey));
  }
  // All but the last piece without a word.
  void write(std::string_view text, std::size_t piece) {
    std::size_t untold = 0;
    while (!text.empty()) {
      while (used_ == length_) take();
      const std::size_t count = std::min({text.size(), piece, length_ - used_, out_.size()});
      std::copy_n(text.begin(), count, out_.begin());
      untold += count;
      const bool tells = count == text.size() || used_ + count == length_;
      put_there(count, tells ? static_cast<std::uint32_t>(untold) : 0);
      if (tells) untold = 0;
      text.remove_prefix(count);
    }
  }
  /// Writes what is in out_; a number of 0 is not told.
  void put_there(std::size_t count, std::uint32_t number) {
    const auto opcode = number != 0 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    post({.opcode = opcode, .bytes = count, .number = number, .address = address_ + used_});
    used_ += count;
  }
  std::string read(std::size_t count) {
    while (text_.size() < count) take();
    const std::string found = text_.substr(0, count);
    text_.erase(0, count);
    return found;
  }
  void expect_text(std::string_view wanted) {
    const std::string found = read(wanted.size());
    require(found == wanted, "it says " + found + " and not " + std::string(wanted));
  }
  /// What comes next.
  void take() {
    const ibv_wc done = next(true);
    require(done.status == IBV_WC_SUCCESS, std::string("a receive ended: ") + ibv_wc_status_str(done.status));
    const message said = said_[done.wr_id];
    post_receive(done.wr_id);
    if (done.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      const std::uint32_t count = ntohl(done.imm_data);
      require(count != 0 && count <= room_.size() - come_,
              "it has written " + std::to_string(count) + " bytes, which do not fit");
      text_.append(room_.data() + come_, count);
      come_ += count;
      if (come_ == room_.size()) announce();
      return;
    }
    require(done.opcode == IBV_WC_RECV && done.byte_len == message_bytes, "a message is not one of 32 bytes");
    kinds_ += std::to_string(get(said, 0, 2)) + " ";
    if (get(said, 0, 2) != 3) return last_ = said, void();
    require(used_ == length_, "it announces a buffer before the last one is full");
    address_ = get(said, 16, 24);
    length_ = get(said, 24, 28);
    key_ = static_cast<std::uint32_t>(get(said, 28, 32));
    require(said == announcement(address_, static_cast<std::uint32_t>(length_), key_), "what is reserved is not zero");
    require(length_ != 0, "it announces nothing");
    used_ = 0;
  }

  [[nodiscard]] bool may_write() const { return length_ != 0; }
  [[nodiscard]] std::size_t left() const { return length_ - used_; }
  [[nodiscard]] const std::string& kinds() const { return kinds_; }
  [[nodiscard]] const message& last() const { return last_; }

 private:
  struct order {
    ibv_wr_opcode opcode;
    std::size_t bytes;
    std::uint32_t number;
    std::uint64_t address;
  };

  void post_receive(std::size_t place) {
    ibv_sge part{
        .addr = reinterpret_cast<std::uintptr_t>(&said_[place]), .length = message_bytes, .lkey = said_key_->lkey};
    ibv_recv_wr wanted{};
    wanted.wr_id = place;
    wanted.sg_list = &part;
    wanted.num_sge = 1;
    ibv_recv_wr* refused = nullptr;
    succeed(ibv_post_recv(id_->qp, &wanted, &refused), "ibv_post_recv");
  }
  // Waits until it is done, because its bytes are in the one place that all have.
  void post(const order& what) {
    ibv_sge part{.addr = reinterpret_cast<std::uintptr_t>(out_.data()),
                 .length = static_cast<std::uint32_t>(what.bytes),
                 .lkey = out_key_->lkey};
    ibv_send_wr wanted{};
    wanted.wr_id = receives;
    wanted.sg_list = &part;
    wanted.num_sge = 1;
    wanted.opcode = what.opcode;
    wanted.send_flags = IBV_SEND_SIGNALED;
    wanted.imm_data = htonl(what.number);
    wanted.wr.rdma.remote_addr = what.address;
    wanted.wr.rdma.rkey = key_;
    ibv_send_wr* refused = nullptr;
    succeed(ibv_post_send(id_->qp, &wanted, &refused), "ibv_post_send");
    const ibv_wc done = next(false);
    require(done.status == IBV_WC_SUCCESS, std::string("a request ended: ") + ibv_wc_status_str(done.status));
  }
  // The next completion of a receive, or of a request; the others wait.
  ibv_wc next(bool of_receive) {
    timespec begun{};
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (;;) {
      if (of_receive && !waiting_.empty()) {
        const ibv_wc first = waiting_.front();
        waiting_.erase(waiting_.begin());
        return first;
      }
      ibv_wc done{};
      const int count = ibv_poll_cq(queue_, 1, &done);
      require(count >= 0, "ibv_poll_cq fails");
      if (count == 1 && (done.wr_id != receives) == of_receive) return done;
      if (count == 1) waiting_.push_back(done);
      timespec now{};
      clock_gettime(CLOCK_MONOTONIC, &now);
      require((now.tv_sec - begun.tv_sec) * 1000 < patience_ms, "nothing comes");
    }
  }

  rdma_cm_id* id_;
  ibv_pd* domain_ = nullptr;
  ibv_cq* queue_ = nullptr;
  std::vector<char> room_;
  std::vector<message> said_;
  std::array<char, 4096> out_{};
  ibv_mr* room_key_ = nullptr;
  ibv_mr* said_key_ = nullptr;
  ibv_mr* out_key_ = nullptr;
  std::vector<ibv_wc> waiting_;  // receives, while a request was waited for
  std::string text_;
  std::string kinds_;
  message last_{};
  std::uint32_t come_ = 0;
  std::uint64_t address_ = 0;
  std::uint64_t length_ = 0;
  std::uint64_t used_ = 0;
  std::uint32_t key_ = 0;
};

class address : private weft::test::immovable {
 public:
  address(const char* host, const char* port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    require(getaddrinfo(host, port, &hints, &found_) == 0, "that is no address");
  }
  ~address() { freeaddrinfo(found_); }
  [[nodiscard]] sockaddr* get() const { return found_->ai_addr; }

 private:
  addrinfo* found_ = nullptr;
};

template <class What>
void ask(const address& where, What what, std::uint32_t room = 100) {
  rdma_event_channel* const channel = made(rdma_create_event_channel(), "rdma_create_event_channel");
  rdma_cm_id* id = nullptr;
  succeed(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
  succeed(rdma_resolve_addr(id, nullptr, where.get(), patience_ms), "rdma_resolve_addr");
  expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
  succeed(rdma_resolve_route(id, patience_ms), "rdma_resolve_route");
  expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
  {
    peer server(id, room);
    rdma_conn_param how = parameters(7);
    succeed(rdma_connect(id, &how), "rdma_connect");
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    what(server, channel);
    rdma_disconnect(id);
  }
  rdma_destroy_event_channel(channel);
}

void talk(peer& server, std::size_t rounds) {
  while (!server.may_write()) server.take();
  message question = of_kind(0);
  put(question, 2, 4, 7);
  server.send(question);
  while (server.kinds() != "3 0 ") server.take();
  require(server.last() == question, "it offers features, or does not say of which it speaks");
  server.send(of_kind(1));
  server.send(of_kind(2));
  server.announce();
  // Enough for either buffer to be full, and this end's many times over.
  const std::string key(36, 'k');
  const std::string words = "$36\r\n" + key + "\r\n";
  std::uint64_t announced = 0;
  for (std::size_t i = 0; i < rounds; ++i) {
    std::string text = std::to_string(i);
    text.resize(64, '.');
    const std::string sized = "$64\r\n" + text + "\r\n";
    server.write("*3\r\n$3\r\nSET\r\n" + words + sized + "*2\r\n$3\r\nGET\r\n" + words, 1 + i % 200);
    server.expect_text("+OK\r\n" + sized);
    announced = static_cast<std::uint64_t>(std::count(server.kinds().begin(), server.kinds().end(), '3'));
  }
  std::printf("answered: %zu commands, through %llu buffers\n", 2 * rounds, static_cast<unsigned long long>(announced));
  if (rounds < 100) return;
  const std::size_t before = server.kinds().size();
  while (server.kinds().find('2', before) == std::string::npos) server.take();  // it says that it is there
}

template <class What>
void expect_refusal(const address& where, const char* name, What what) {
  ask(where, [&](peer& server, rdma_event_channel* channel) {
    while (!server.may_write()) server.take();
    what(server);
    expect(channel, RDMA_CM_EVENT_DISCONNECTED);
    std::printf("refused: %s\n", name);
  });
}

void run_client(const address& where) {
  ask(where, [](peer& server, rdma_event_channel*) { talk(server, 700); });
  expect_refusal(where, "a message of 31 bytes", [](peer& server) { server.send(of_kind(2), 31); });
  expect_refusal(where, "an unknown kind", [](peer& server) { server.send(of_kind(4)); });
  expect_refusal(where, "features that were not offered", [](peer& server) {
    message said = of_kind(1);
    put(said, 24, 32, 1);
    server.send(said);
  });
  expect_refusal(where, "a buffer of no bytes", [](peer& server) { server.send(announcement(4096, 0, 1)); });
  expect_refusal(where, "a buffer beyond all addresses",
                 [](peer& server) { server.send(announcement(UINT64_MAX, 2, 1)); });
  expect_refusal(where, "a buffer announced twice", [](peer& server) {
    server.announce();
    server.announce();
  });
  expect_refusal(where, "a number beyond what is left",
                 [](peer& server) { server.put_there(1, static_cast<std::uint32_t>(server.left() + 1)); });
  ask(
      where, [](peer& server, rdma_event_channel*) { talk(server, 10); }, 4096);
}

void answer(rdma_cm_id* id, rdma_event_channel* channel, std::string_view question, std::string_view reply) {
  peer client(id, 16);
  rdma_conn_param how = parameters(0);
  succeed(rdma_accept(id, &how), "rdma_accept");
  expect(channel, RDMA_CM_EVENT_ESTABLISHED);
  while (!client.may_write()) client.take();
  require(client.kinds() == "0 1 3 ", "the client begins with " + client.kinds());
  client.send(of_kind(0));
  client.announce();
  client.expect_text(question);
  client.write(reply, 3);
  expect(channel, RDMA_CM_EVENT_DISCONNECTED);
  rdma_disconnect(id);
}

void run_server(const address& where) {
  rdma_event_channel* const channel = made(rdma_create_event_channel(), "rdma_create_event_channel");
  rdma_cm_id* id = nullptr;
  succeed(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
  succeed(rdma_bind_addr(id, where.get()), "rdma_bind_addr");
  succeed(rdma_listen(id, 4), "rdma_listen");
  answer(expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST), channel, "*3\r\n$3\r\nSET\r\n$6\r\ncolour\r\n$4\r\nblue\r\n",
         "+OK\r\n");
  answer(expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST), channel, "*2\r\n$3\r\nGET\r\n$6\r\ncolour\r\n",
         "$4\r\nblue\r\n");
  rdma_destroy_id(id);
  rdma_destroy_event_channel(channel);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view role = argc == 4 ? argv[1] : "";
  if (role != "ask" && role != "answer") {
    std::fprintf(stderr, "valkey_peer ask|answer ADDRESS PORT\n");
    return 2;
  }
  const address where(argv[2], argv[3]);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  role == "ask" ? run_client(where) : run_server(where);
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "valkey_peer: %s\n", failure.what());
  return 1;
}
