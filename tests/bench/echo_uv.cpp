// SPDX-License-Identifier: Apache-2.0
// echo_uv: an echo server over TCP by libuv. Prints its port.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <uv.h>

#include <cstdio>
#include <cstdlib>

#include "kit/standard.hpp"

namespace {

void expect(int result, const char* what) {
  if (result >= 0) return;
  std::fprintf(stderr, "echo_uv: %s: %s\n", what, uv_strerror(result));
  std::exit(1);
}

struct connection {
  uv_tcp_t stream;
  std::array<char, 4096> room;
};

// What the kernel did not take at once, until it does.
struct rest {
  uv_write_t request;
  std::vector<char> bytes;
};

void end(connection* self) {
  uv_close(reinterpret_cast<uv_handle_t*>(&self->stream),
           [](uv_handle_t* handle) { delete static_cast<connection*>(handle->data); });
}

void give_room(uv_handle_t* handle, std::size_t, uv_buf_t* room) {
  auto* const self = static_cast<connection*>(handle->data);
  *room = uv_buf_init(self->room.data(), static_cast<unsigned>(self->room.size()));
}

void write_later(uv_stream_t* to, const char* bytes, std::size_t size) {
  auto* const left = new rest{{}, {bytes, bytes + size}};
  left->request.data = left;
  const uv_buf_t what = uv_buf_init(left->bytes.data(), static_cast<unsigned>(size));
  expect(uv_write(&left->request, to, &what, 1,
                  [](uv_write_t* request, int) { delete static_cast<rest*>(request->data); }),
         "uv_write");
}

void write_back(uv_stream_t* stream, ssize_t got, const uv_buf_t* bytes) {
  if (got == 0) return;
  if (got < 0) return end(static_cast<connection*>(stream->data));
  const uv_buf_t what = uv_buf_init(bytes->base, static_cast<unsigned>(got));
  const int taken = uv_try_write(stream, &what, 1);  // spares a request and its callback
  const int sent = taken == UV_EAGAIN ? 0 : taken;
  if (sent < 0) return end(static_cast<connection*>(stream->data));
  if (sent < got) write_later(stream, bytes->base + sent, static_cast<std::size_t>(got - sent));
}

void accept(uv_stream_t* listener, int status) {
  expect(status, "listen");
  auto* const self = new connection;
  expect(uv_tcp_init(listener->loop, &self->stream), "uv_tcp_init");
  self->stream.data = self;
  auto* const stream = reinterpret_cast<uv_stream_t*>(&self->stream);
  expect(uv_accept(listener, stream), "uv_accept");
  expect(uv_tcp_nodelay(&self->stream, 1), "uv_tcp_nodelay");
  expect(uv_read_start(stream, give_room, write_back), "uv_read_start");
}

}  // namespace

int main() {
  uv_loop_t* const loop = uv_default_loop();
  uv_tcp_t listener;
  expect(uv_tcp_init(loop, &listener), "uv_tcp_init");
  sockaddr_in address{};
  expect(uv_ip4_addr("127.0.0.1", 0, &address), "uv_ip4_addr");
  expect(uv_tcp_bind(&listener, reinterpret_cast<const sockaddr*>(&address), 0), "uv_tcp_bind");
  expect(uv_listen(reinterpret_cast<uv_stream_t*>(&listener), SOMAXCONN, accept), "uv_listen");
  int length = sizeof address;
  expect(uv_tcp_getsockname(&listener, reinterpret_cast<sockaddr*>(&address), &length), "uv_tcp_getsockname");
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return uv_run(loop, UV_RUN_DEFAULT);
}
