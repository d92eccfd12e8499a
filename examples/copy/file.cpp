// SPDX-License-Identifier: Apache-2.0
#include "file.hpp"

#include <fmt/core.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string_view>
#include <system_error>

#include "failure.hpp"
#include <common/printable.hpp>

namespace copy {
namespace {

constexpr int attempts_at_a_name = 100;

std::string random_letters() {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device source;
  std::uniform_int_distribution<std::size_t> one_of(0, letters.size() - 1);
  std::string text(6, ' ');
  for (char& letter : text) letter = letters[one_of(source)];
  return text;
}

// Long names are cut, so that the temporary one is possible wherever the final one is.
std::string temporary_name(const std::string& name) {
  constexpr std::size_t extra = 13;  // two dots, the letters, ".part"
  return fmt::format(".{}.{}.part", name.substr(0, longest_name_bytes - extra), random_letters());
}

bool same_content(const struct ::stat& a, const struct ::stat& b) noexcept {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

int open_to_read(int place, const std::string& name, int flags) {
  // Non-blocking, because opening a pipe would wait for somebody to write to it.
  return ::openat(place, name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
}

}  // namespace

failure system_failure(int number, const std::string& context) {
  return failure(context + ": " + std::system_category().message(number));
}

file_descriptor::~file_descriptor() { static_cast<void>(close()); }

int file_descriptor::close() noexcept {
  const int fd = std::exchange(fd_, -1);
  return fd >= 0 && ::close(fd) != 0 ? errno : 0;
}

directory::directory(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_.get() < 0) throw system_failure(errno, fmt::format("cannot open the directory '{}'", path_));
}

void check_plain_name(const std::string& name) {
  const auto refuse = [](const char* why) { throw failure(fmt::format("not a plain file name: {}", why)); };
  if (name.empty()) refuse("the name is empty");
  if (name.size() > longest_name_bytes) refuse("the name is longer than 255 bytes");
  if (name.front() == '.') refuse("the name begins with a dot");
  if (name.find('/') != std::string::npos) refuse("the name contains a slash");
  if (common::has_control(name)) refuse("the name contains a control character");
}

source_file::source_file(const std::string& path) : source_file(path, open_to_read(AT_FDCWD, path, 0)) {}

source_file::source_file(const directory& place, const std::string& name)
    : source_file(name, open_to_read(place.fd(), name, O_NOFOLLOW)) {}

source_file::source_file(std::string name, int fd) : name_(std::move(name)), fd_(fd) {
  if (fd < 0 && errno == ELOOP) throw failure(fmt::format("'{}' is a symbolic link", name_));
  if (fd < 0) throw system_failure(errno, fmt::format("cannot open '{}'", name_));
  if (::fstat(fd, &at_first_) != 0) throw system_failure(errno, fmt::format("cannot examine '{}'", name_));
  if (S_ISDIR(at_first_.st_mode)) throw failure(fmt::format("'{}' is a directory", name_));
  if (!S_ISREG(at_first_.st_mode)) throw failure(fmt::format("'{}' is not a regular file", name_));
  // As those of /proc: what would be sent is nothing.
  char more = 0;
  if (at_first_.st_size == 0 && ::pread(fd, &more, 1, 0) > 0) {
    throw failure(fmt::format("'{}' has more bytes than its size says", name_));
  }
}

void source_file::read(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::read(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_failure(errno, fmt::format("cannot read '{}'", name_));
    if (count == 0) throw failure(fmt::format("'{}' became shorter while it was read", name_));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void source_file::check_unchanged() const {
  struct ::stat now {};
  if (::fstat(fd_.get(), &now) != 0) throw system_failure(errno, fmt::format("cannot examine '{}'", name_));
  if (!same_content(now, at_first_)) throw failure(fmt::format("'{}' changed while it was read", name_));
}

part_file::part_file(const directory& place, const std::string& name) : place_(&place), name_(name) {
  struct ::stat there {};
  if (::fstatat(place.fd(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(there.st_mode)) {
    throw failure(fmt::format("'{}' is a directory", name));
  }
  for (int attempt = 0; attempt < attempts_at_a_name; ++attempt) {
    std::string candidate = temporary_name(name);
    fd_ = file_descriptor(::openat(place.fd(), candidate.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd_.get() >= 0) {
      temporary_ = std::move(candidate);
      return;
    }
    if (errno != EEXIST) break;
  }
  throw system_failure(errno, fmt::format("cannot create a file in '{}'", place.path()));
}

part_file::part_file(part_file&& other) noexcept
    : place_(other.place_),
      name_(std::move(other.name_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::move(other.fd_)) {}

part_file::~part_file() {
  if (!temporary_.empty()) ::unlinkat(place_->fd(), temporary_.c_str(), 0);
}

void part_file::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_failure(errno, fmt::format("cannot write '{}'", name_));
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void part_file::commit(bool sync) {
  if (sync && ::fsync(fd_.get()) != 0) throw system_failure(errno, fmt::format("cannot sync '{}'", name_));
  if (const int number = fd_.close()) throw system_failure(number, fmt::format("cannot write '{}'", name_));
  if (::renameat(place_->fd(), temporary_.c_str(), place_->fd(), name_.c_str()) != 0) {
    throw system_failure(errno, fmt::format("cannot rename the finished file to '{}'", name_));
  }
  temporary_.clear();
  // The new name is durable once the directory is.
  if (sync && ::fsync(place_->fd()) != 0) {
    throw system_failure(errno, fmt::format("cannot sync the directory '{}'", place_->path()));
  }
}

}  // namespace copy
