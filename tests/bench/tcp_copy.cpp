// SPDX-License-Identifier: Apache-2.0
// The plain program that `copy` is measured against: it reads, hashes, sends, receives, hashes and writes a file in the
// same pieces, under the same temporary name, and checks the same digest, over blocking TCP sockets and one client at a
// time.
//
//   tcp_copy serve DIR          prints the port on the loopback interface
//   tcp_copy put FILE PORT
//   tcp_copy get NAME PORT      into the current directory
#include <fmt/core.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "loopback.hpp"
#include <copy/digest.hpp>
#include <copy/failure.hpp>
#include <copy/file.hpp>
#include <copy/progress.hpp>
#include <copy/protocol.hpp>

namespace {

using copy::digest;
using copy::failure;

/// What a client asks for. Only ever between two processes of one machine, so as it lies in memory.
struct request {
  std::uint64_t size = 0;
  char verb = 'p';
  char name[copy::longest_name_bytes + 1] = {};
};

copy::file_descriptor checked(int fd, const char* made_by) {
  if (fd < 0) throw copy::system_failure(errno, made_by);
  return copy::file_descriptor(fd);
}

copy::file_descriptor connect_to(const char* port) {
  return checked(weft::bench::connect_to(static_cast<std::uint16_t>(std::atoi(port))), "connect");
}

void send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0) throw copy::system_failure(errno, "send");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

bool receive_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (count < 0) throw copy::system_failure(errno, "recv");
    if (count == 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

template <class T>
void send_value(int fd, const T& value) {
  send_all(fd, std::as_bytes(std::span(&value, 1)));
}

template <class T>
T receive_value(int fd) {
  T value{};
  if (!receive_all(fd, std::as_writable_bytes(std::span(&value, 1)))) throw failure("the peer has gone");
  return value;
}

void send_file(int fd, copy::source_file& source, copy::progress* shown = nullptr) {
  std::vector<std::byte> chunk(copy::most_chunk_bytes);
  copy::sha256 hash;
  for (std::uint64_t i = 0; i < copy::chunks_of(source.size()); ++i) {
    const auto bytes = std::span(chunk).first(copy::bytes_of_chunk(source.size(), i));
    source.read(bytes);
    hash.update(bytes);
    send_all(fd, bytes);
    if (shown != nullptr) shown->advance(bytes.size());
  }
  source.check_unchanged();
  send_value(fd, hash.finish());
  receive_value<char>(fd);  // stored
}

void receive_file(int fd, copy::part_file target, std::uint64_t size) {
  std::vector<std::byte> chunk(copy::most_chunk_bytes);
  copy::sha256 hash;
  for (std::uint64_t i = 0; i < copy::chunks_of(size); ++i) {
    const auto bytes = std::span(chunk).first(copy::bytes_of_chunk(size, i));
    if (!receive_all(fd, bytes)) throw failure("the peer has gone");
    hash.update(bytes);
    target.write(bytes);
  }
  if (receive_value<digest>(fd) != hash.finish()) throw failure("the file arrived damaged");
  target.commit(false);
  send_value(fd, 's');
}

void attend(int fd, const copy::directory& place) {
  const auto wanted = receive_value<request>(fd);
  if (wanted.verb == 'p') return receive_file(fd, copy::part_file(place, wanted.name), wanted.size);
  copy::source_file source(place, wanted.name);
  send_value(fd, source.size());
  send_file(fd, source);
}

void serve(const std::string& path) {
  const copy::directory place(path);
  const auto listener = checked(weft::bench::listen_anywhere(), "listen");
  for (;;) {
    const auto client = checked(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept");
    try {
      attend(client.get(), place);
    } catch (const failure& why) {
      fmt::print(stderr, "tcp_copy: {}\n", why.what());
    }
  }
}

void ask(int fd, char verb, const std::string& name, std::uint64_t size) {
  request wanted{.size = size, .verb = verb};
  copy::check_plain_name(name);
  std::memcpy(wanted.name, name.data(), name.size());
  send_value(fd, wanted);
}

void put(const std::string& path, const char* port) {
  const std::string name = std::filesystem::path(path).filename();
  copy::source_file source(path);
  copy::progress shown(name, source.size());
  const auto fd = connect_to(port);
  ask(fd.get(), 'p', name, source.size());
  send_file(fd.get(), source, &shown);
  shown.finish("");
}

void get(const std::string& name, const char* port) {
  const copy::directory here(".");
  const auto fd = connect_to(port);
  ask(fd.get(), 'g', name, 0);
  const auto size = receive_value<std::uint64_t>(fd.get());
  receive_file(fd.get(), copy::part_file(here, name), size);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "serve") serve(words[1]);
  if (words.size() != 3 || (words[0] != "put" && words[0] != "get")) {
    std::fputs("usage: tcp_copy serve DIR | put FILE PORT | get NAME PORT\n", stderr);
    return 2;
  }
  if (words[0] == "put") put(words[1], argv[3]);
  if (words[0] == "get") get(words[1], argv[3]);
  return 0;
} catch (const std::exception& why) {
  fmt::print(stderr, "tcp_copy: {}\n", why.what());
  return 1;
}
