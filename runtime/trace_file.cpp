// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/trace.hpp>
#include <weft/runtime/trace_file.hpp>

#include <fmt/format.h>

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

namespace weft {
namespace {

// The format groups events by process and then by thread, so each trace_track is written as a process of its own.
constexpr int executors_group = 1;
struct group {
  int number;
  const char* category;
  const char* title;
};
constexpr std::array<group, 4> groups = {{
    {2, "task", "tasks"},
    {3, "operation", "operations"},
    {4, "registration", "registrations"},
    {5, "connection", "connections"},
}};

const group& group_of(trace_track track) noexcept { return groups[static_cast<std::size_t>(track)]; }

double microseconds(time_point time) noexcept {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

// A JSON string (RFC 8259, section 7). Formatted by hand, because names are all that needs quoting, and programs should
// not have to link a JSON library for that.
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

namespace {

// The sink of all trace files, one after another. Never destroyed, because an executor may end a span after the
// recording in which the span began. Between recordings it drops all events.
class file_sink final : public trace_sink {
 public:
  static file_sink& instance() {
    static file_sink& sink = *new file_sink;
    return sink;
  }

  void open(const std::string& path) {
    static const int failed = ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                                               [] { instance().leave_to_parent(); });
    if (failed != 0) throw std::bad_alloc();
    const std::lock_guard lock(mutex_);
    if (file_ != nullptr)
      throw error(errc::busy, fmt::format("create the trace {}: {} is being recorded", path, path_));
    std::string kept = path;
    text_.clear();
    write_titles();
    file_ = std::fopen(path.c_str(), "we");
    if (file_ == nullptr) throw system_error(errno, fmt::format("create the trace {}", path));
    std::setvbuf(file_, nullptr, _IONBF, 0);  // text_ is the buffer: a child of fork(2) would write the file's again
    path_ = std::move(kept);                  // nothing throws from here on
    failure_ = 0;
    ++number_;
    set_trace(this);
  }

  void close() {
    set_trace(nullptr);
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) return;  // the parent's
    flush();
    put("\n]}}\n");  // cannot throw: the buffer has just been emptied
    flush();
    const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
    if (failure_ == 0 && !closed) failure_ = errno;
    if (failure_ != 0) throw system_error(failure_, fmt::format("write the trace {}", path_));
  }

  void began(trace_track track, const void* item, std::string_view name) noexcept override {
    const group& where = group_of(track);
    event(R"({{"ph":"b","cat":"{}","id":"{}","name":{},"pid":{},"tid":0,"ts":{:.3f}}})", where.category, item,
          quoted{name}, where.number, microseconds(clock::steady().now()));
  }
  void ended(trace_track track, const void* item) noexcept override {
    const group& where = group_of(track);
    event(R"({{"ph":"e","cat":"{}","id":"{}","pid":{},"tid":0,"ts":{:.3f}}})", where.category, item, where.number,
          microseconds(clock::steady().now()));
  }
  void happened(trace_track track, const void* item, std::string_view name) noexcept override {
    const group& where = group_of(track);
    event(R"({{"ph":"n","cat":"{}","id":"{}","name":{},"pid":{},"tid":0,"ts":{:.3f}}})", where.category, item,
          quoted{name}, where.number, microseconds(clock::steady().now()));
  }
  void ran(std::string_view name, time_point start, time_point end) noexcept override {
    event(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})", quoted{name}, executors_group,
          ::gettid(), microseconds(start), microseconds(end) - microseconds(start));
  }

 private:
  // In a child of fork(2), which records nothing: the file is its parent's, and so is the text that is not written yet.
  void leave_to_parent() noexcept {
    file_ = nullptr;
    text_.clear();
    mutex_.unlock();
  }

  static constexpr std::size_t flush_bytes = std::size_t{64} * 1024;

  file_sink() = default;
  ~file_sink() = default;

  void write_titles() {
    put(R"({{"traceEvents":[{{"ph":"M","name":"process_name","pid":{},"args":{{"name":"executors"}}}})",
        executors_group);
    for (const group& each : groups) {
      put(R"(,{}{{"ph":"M","name":"process_name","pid":{},"args":{{"name":"{}"}}}})", '\n', each.number, each.title);
    }
  }

  // Writes an event, or drops it if there is no memory for its text.
  template <class... Arguments>
  void event(fmt::format_string<Arguments...> format, const Arguments&... arguments) noexcept {
    const std::lock_guard lock(mutex_);
    if (file_ == nullptr) return;
    const std::size_t before = text_.size();
    try {
      name_this_thread();
      put(",\n");
      put(format, arguments...);
    } catch (const std::exception&) {
      text_.resize(before);
    }
    if (text_.size() >= flush_bytes) flush();
  }

  template <class... Arguments>
  void put(fmt::format_string<Arguments...> format, const Arguments&... arguments) {
    fmt::vformat_to(std::back_inserter(text_), format, fmt::make_format_args(arguments...));
  }

  void flush() noexcept {
    if (std::fwrite(text_.data(), 1, text_.size(), file_) != text_.size() && failure_ == 0) failure_ = errno;
    text_.clear();
  }

  // Writes this thread's name, once in each recording, because events have only the thread's number.
  void name_this_thread() {
    thread_local std::uint64_t named_for = 0;
    if (std::exchange(named_for, number_) == number_) return;
    std::array<char, 16> name{};  // room for the longest name of pthread_setname_np(3)
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    put(R"(,{}{{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", '\n', executors_group,
        ::gettid(), quoted{name.data()});
  }

  std::mutex mutex_;          // guards all fields below
  std::uint64_t number_ = 0;  // counts the recordings
  std::string path_;
  std::FILE* file_ = nullptr;  // null: nothing is recorded
  fmt::memory_buffer text_;
  int failure_ = 0;
};

}  // namespace

trace_file::trace_file(const std::string& path) { file_sink::instance().open(path); }

trace_file::~trace_file() {
  try {
    close();
  } catch (const std::exception&) {  // a destructor cannot report the error
  }
}

void trace_file::close() {
  if (std::exchange(open_, false)) file_sink::instance().close();
}

}  // namespace weft
