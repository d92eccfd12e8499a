// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/observe/trace_file.hpp>

#include <fmt/format.h>

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <utility>

namespace weft {
namespace {

// The format groups by process and then by thread: each kind of track is a process of its own.
constexpr int executors_group = 1;
struct group {
  int number;
  const char* category;
  const char* title;
};
constexpr std::array<group, 3> groups = {{
    {2, "task", "tasks"},
    {3, "operation", "operations"},
    {4, "registration", "registrations"},
}};

const group& group_of(trace_track track) noexcept { return groups[static_cast<std::size_t>(track)]; }

double microseconds(time_point time) noexcept {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

// Text as JSON has it, in quotation marks (RFC 8259, section 7). By hand, so that whoever links weft needs no library
// for JSON: names are all there is to quote.
struct quoted {
  std::string_view text;
};

}  // namespace
}  // namespace weft

template <>
struct fmt::formatter<weft::quoted> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  auto format(const weft::quoted& item, format_context& context) const {
    auto out = context.out();
    *out++ = '"';
    for (const char c : item.text) {
      if (c == '"' || c == '\\') *out++ = '\\';
      *out++ = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    *out++ = '"';
    return out;
  }
};

namespace weft {

class trace_file::writer {
 public:
  explicit writer(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "we")) {
    if (file_ == nullptr) throw system_error(errno, fmt::format("create the trace {}", path));
    const std::lock_guard lock(mutex_);
    put(R"({{"traceEvents":[{{"ph":"M","name":"process_name","pid":{},"args":{{"name":"executors"}}}})",
        executors_group);
    for (const group& each : groups) {
      put(R"(,{}{{"ph":"M","name":"process_name","pid":{},"args":{{"name":"{}"}}}})", '\n', each.number, each.title);
    }
  }
  writer(const writer&) = delete;
  writer& operator=(const writer&) = delete;
  ~writer() {
    if (file_ != nullptr) std::fclose(file_);
  }

  void finish() {
    const std::lock_guard lock(mutex_);
    put("\n]}}\n");
    flush();
    const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
    if (failure_ == 0 && !closed) failure_ = errno;
    if (failure_ != 0) throw system_error(failure_, fmt::format("write the trace {}", path_));
  }

  // One event. A trace that has no memory for it does without.
  template <class... Arguments>
  void event(fmt::format_string<Arguments...> format, const Arguments&... arguments) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      name_this_thread();
      put(",\n");
      put(format, arguments...);
      if (text_.size() >= flush_bytes) flush();
    } catch (const std::exception&) {
    }
  }

 private:
  static constexpr std::size_t flush_bytes = std::size_t{64} * 1024;

  template <class... Arguments>
  void put(fmt::format_string<Arguments...> format, const Arguments&... arguments) {
    fmt::vformat_to(std::back_inserter(text_), format, fmt::make_format_args(arguments...));
  }

  void flush() noexcept {
    if (std::fwrite(text_.data(), 1, text_.size(), file_) != text_.size() && failure_ == 0) failure_ = errno;
    text_.clear();
  }

  // Threads are known by their numbers: say once what they are called.
  void name_this_thread() {
    thread_local std::uint64_t named_for = 0;
    if (std::exchange(named_for, number_) == number_) return;
    std::array<char, 16> name{};  // pthread_setname_np(3): no longer
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    put(R"(,{}{{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", '\n', executors_group,
        ::gettid(), quoted{name.data()});
  }

  static inline std::atomic<std::uint64_t> last_number{0};

  const std::uint64_t number_ = ++last_number;  // never given twice, unlike an address
  std::string path_;
  std::mutex mutex_;
  std::FILE* file_;
  fmt::memory_buffer text_;
  int failure_ = 0;
};

trace_file::trace_file(const std::string& path) : writer_(std::make_unique<writer>(path)) { set_trace(this); }

trace_file::~trace_file() {
  try {
    close();
  } catch (const std::exception&) {  // nobody to tell
  }
}

void trace_file::close() {
  if (writer_ == nullptr) return;
  set_trace(nullptr);
  const std::unique_ptr<writer> last = std::move(writer_);
  last->finish();
}

void trace_file::began(trace_track track, const void* item, std::string_view name) noexcept {
  const group& where = group_of(track);
  writer_->event(R"({{"ph":"b","cat":"{}","id":"{}","name":{},"pid":{},"tid":0,"ts":{:.3f}}})", where.category, item,
                 quoted{name}, where.number, microseconds(clock::steady().now()));
}

void trace_file::ended(trace_track track, const void* item) noexcept {
  const group& where = group_of(track);
  writer_->event(R"({{"ph":"e","cat":"{}","id":"{}","pid":{},"tid":0,"ts":{:.3f}}})", where.category, item,
                 where.number, microseconds(clock::steady().now()));
}

void trace_file::ran(std::string_view name, time_point start, time_point end) noexcept {
  writer_->event(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})", quoted{name}, executors_group,
                 ::gettid(), microseconds(start), microseconds(end) - microseconds(start));
}

}  // namespace weft
