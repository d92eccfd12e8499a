// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

#include <kv/resp.hpp>

namespace kv {
namespace {

// What redis-cli, redis-benchmark and the clients of others take it for.
constexpr std::string_view redis_version = "7.0.0";
constexpr std::string_view line_end = "\r\n";
constexpr std::string_view not_an_integer = "ERR value is not an integer or out of range";
constexpr std::string_view syntax_error = "ERR syntax error";
constexpr std::string_view spaces = " \t\r\v\f";
// A type, a sign, 19 digits, and the end of the line.
constexpr std::size_t longest_number_line = 24;

char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

// Commands come in either case; `known` is in small letters.
bool is(std::string_view word, std::string_view known) noexcept {
  return word.size() == known.size() &&
         std::equal(word.begin(), word.end(), known.begin(), [](char a, char b) { return lower(a) == b; });
}

// As Redis has it: no plus, no zeros in front, nothing around it.
std::optional<std::int64_t> integer_of(std::string_view word) noexcept {
  std::int64_t found = 0;
  const auto [stop, failure] = std::from_chars(word.data(), word.data() + word.size(), found);
  if (failure != std::errc() || stop != word.data() + word.size()) return std::nullopt;
  const std::string_view digits = word.substr(word.front() == '-' ? 1 : 0);
  if (digits.front() == '0' && word.size() != 1) return std::nullopt;
  return found;
}

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  return lower(c) >= 'a' && lower(c) <= 'f' ? lower(c) - 'a' + 10 : -1;
}

// What is in quotes from `at` on; yields the place behind them, or npos if they do not end.
std::size_t append_quoted(std::string_view line, std::size_t at, std::string& into) {
  constexpr std::string_view escapes = "nrtba";
  constexpr std::string_view meanings = "\n\r\t\b\a";
  const char quote = line[at++];
  for (; at < line.size() && line[at] != quote; ++at) {
    const std::string_view rest = line.substr(at);
    if (rest[0] != '\\' || rest.size() == 1 || (quote == '\'' && rest[1] != quote)) {
      into.push_back(rest[0]);
    } else if (quote == '"' && rest[1] == 'x' && rest.size() > 3 && hex_digit(rest[2]) >= 0 &&
               hex_digit(rest[3]) >= 0) {
      into.push_back(static_cast<char>(hex_digit(rest[2]) * 16 + hex_digit(rest[3])));
      at += 3;
    } else {
      const std::size_t known = quote == '"' ? escapes.find(rest[1]) : std::string_view::npos;
      into.push_back(known != std::string_view::npos ? meanings[known] : rest[1]);
      ++at;
    }
  }
  return at < line.size() ? at + 1 : std::string_view::npos;
}

std::string wrong_count(std::string_view command) {
  return fmt::format("ERR wrong number of arguments for '{}' command", command);
}

std::string invalid_expiry(std::string_view command) {
  return fmt::format("ERR invalid expire time in '{}' command", command);
}

// So long after `from`, as far as a table can name it; empty where Redis cannot name it either. Not below 0.
std::optional<moment> moment_after(moment from, std::int64_t time, bool seconds) noexcept {
  constexpr moment most = std::numeric_limits<std::int64_t>::max();
  const moment unit = seconds ? 1000 : 1;
  if (static_cast<moment>(time) > (most - from) / unit) return std::nullopt;
  return std::min(from + static_cast<moment>(time) * unit, latest_moment);
}

}  // namespace

// ---- answers ----

void resp_writer::line(char kind, std::string_view text) {
  into_.push_back(kind);
  into_.append(text).append(line_end);
}

void resp_writer::number_line(char kind, std::int64_t number) {
  std::array<char, longest_number_line> room;
  room[0] = kind;
  char* const end = std::to_chars(room.data() + 1, room.data() + room.size() - 2, number).ptr;
  std::copy(line_end.begin(), line_end.end(), end);
  into_.append(room.data(), static_cast<std::size_t>(end - room.data()) + line_end.size());
}

void resp_writer::error(std::string_view text) {
  into_.push_back('-');
  const std::size_t begin = into_.size();
  into_.append(text);
  const auto control = [](char c) { return static_cast<unsigned char>(c) < ' '; };
  std::replace_if(into_.begin() + static_cast<std::ptrdiff_t>(begin), into_.end(), control, ' ');
  into_.append(line_end);
}

void resp_writer::bulk(std::string_view text) {
  expect(longest_number_line + text.size() + line_end.size());
  number_line('$', static_cast<std::int64_t>(text.size()));
  into_.append(text).append(line_end);
}

void resp_writer::verbatim(std::string_view text) {
  if (protocol_ == 2) return bulk(text);
  number_line('=', static_cast<std::int64_t>(text.size() + 4));
  into_.append("txt:").append(text).append(line_end);
}

void resp_writer::null() { into_.append(protocol_ == 2 ? "$-1\r\n" : "_\r\n"); }

void resp_writer::null_array() { into_.append(protocol_ == 2 ? "*-1\r\n" : "_\r\n"); }

void resp_writer::map(std::size_t pairs) {
  if (protocol_ == 2) return array(2 * pairs);
  number_line('%', static_cast<std::int64_t>(pairs));
}

void resp_writer::set(std::size_t elements) {
  number_line(protocol_ == 2 ? '*' : '~', static_cast<std::int64_t>(elements));
}

// ---- a session ----

resp_session::resp_session(resp_service& of, std::string_view peer)
    : service_(of), id_(++of.last_id_), peer_(peer), began_(of.now_()) {
  pieces_.reserve(8);
  words_.reserve(8);
  of.sessions_.push_back(this);
}

resp_session::~resp_session() { service_.sessions_.remove(this); }

std::optional<std::size_t> resp_session::execute(std::string_view input, std::string& output) {
  resp_writer out(output, protocol_);
  const std::size_t before = out.size();
  now_ = service_.now_();
  std::size_t taken = 0;
  if (std::exchange(wants_turn_, false) && flushing_ && !go_on_flushing(out)) return 0;
  while (taken != input.size() && out.size() - before < enough_answers) {
    const std::string_view rest = input.substr(taken);
    const parsed result = parse(rest, out);
    if (result == parsed::broken) return std::nullopt;
    if (result == parsed::incomplete) break;
    words_.clear();
    const std::string_view text = unquoted_.empty() ? rest : std::string_view(unquoted_);
    for (const piece& each : pieces_) words_.push_back(text.substr(each.offset, each.size));
    taken += position_;
    if (!words_.empty()) run(words_, out);
    forget_command();
    if (ended_) return std::nullopt;
    if (wants_turn_) break;
  }
  return taken;
}

void resp_session::forget_command() noexcept {
  position_ = 0;
  expected_.reset();
  pieces_.clear();
  unquoted_.clear();
}

// ---- parsing ----

resp_session::parsed resp_session::refuse(std::string_view why, resp_writer& out) {
  fault_ = why;
  out.error(fmt::format("ERR Protocol error: {}", why));
  return parsed::broken;
}

// Of the line at position_, whose first character is its kind.
resp_session::number_found resp_session::parse_number(std::string_view input, std::int64_t& number) {
  const std::string_view line = input.substr(position_, longest_number_line);
  const std::size_t end = line.find('\r', 1);
  if (end == std::string_view::npos) {
    return line.size() == longest_number_line ? number_found::no : number_found::incomplete;
  }
  if (end + 1 == line.size())
    return input.size() == position_ + line.size() ? number_found::incomplete : number_found::no;
  const auto found = integer_of(line.substr(1, end - 1));
  if (!found || line[end + 1] != '\n') return number_found::no;
  number = *found;
  position_ += end + line_end.size();
  return number_found::yes;
}

resp_session::parsed resp_session::parse(std::string_view input, resp_writer& out) {
  if (!expected_) {
    if (input.front() != '*') return parse_inline(input, out);
    std::int64_t count = 0;
    const number_found found = parse_number(input, count);
    if (found == number_found::incomplete) return parsed::incomplete;
    if (found == number_found::no || count > static_cast<std::int64_t>(most_words)) {
      return refuse("invalid multibulk length", out);
    }
    expected_ = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  }
  while (pieces_.size() != *expected_) {
    const parsed result = parse_word(input, out);
    if (result != parsed::whole) return result;
  }
  return parsed::whole;
}

resp_session::parsed resp_session::parse_word(std::string_view input, resp_writer& out) {
  if (position_ == input.size()) return parsed::incomplete;
  if (input[position_] != '$') return refuse(fmt::format("expected '$', got '{}'", input[position_]), out);
  const std::size_t begin = position_;
  std::int64_t size = 0;
  const number_found found = parse_number(input, size);
  if (found == number_found::incomplete) return parsed::incomplete;
  if (found == number_found::no || size < 0 || size > static_cast<std::int64_t>(longest_command)) {
    return refuse("invalid bulk length", out);
  }
  const auto bytes = static_cast<std::size_t>(size);
  if (position_ + bytes > longest_command) return refuse("the command is too long", out);
  if (input.size() - position_ < bytes + line_end.size()) {
    position_ = begin;
    return parsed::incomplete;
  }
  if (input.substr(position_ + bytes, line_end.size()) != line_end) {
    return refuse("a bulk string does not end where it should", out);
  }
  pieces_.push_back({.offset = position_, .size = bytes});
  position_ += bytes + line_end.size();
  return parsed::whole;
}

// Words between spaces: for people with telnet.
resp_session::parsed resp_session::parse_inline(std::string_view input, resp_writer& out) {
  constexpr std::size_t longest_line = std::size_t{64} << 10;
  const std::size_t end = input.find('\n', position_);
  if (end > longest_line) {  // or nowhere
    if (input.size() > longest_line) return refuse("too big inline request", out);
    position_ = input.size();  // none of these is the end
    return parsed::incomplete;
  }
  const std::string_view line = input.substr(0, end);
  position_ = end + 1;
  if (line.find_first_of("\"'") != std::string_view::npos) {
    if (!unquote(line)) return refuse("unbalanced quotes in request", out);
    return pieces_.size() > most_words ? refuse("too many words", out) : parsed::whole;
  }
  for (std::size_t begin = line.find_first_not_of(spaces); begin != std::string_view::npos;) {
    const std::size_t stop = std::min(line.find_first_of(spaces, begin), line.size());
    if (pieces_.size() == most_words) return refuse("too many words", out);
    pieces_.push_back({.offset = begin, .size = stop - begin});
    begin = line.find_first_not_of(spaces, stop);
  }
  return parsed::whole;
}

// Quotes hold a word together, and double ones know escapes, as sdssplitargs() of Redis has it. False: they do not fit.
bool resp_session::unquote(std::string_view line) {
  for (std::size_t at = line.find_first_not_of(spaces); at < line.size() && pieces_.size() <= most_words;
       at = line.find_first_not_of(spaces, at)) {
    const std::size_t begin = unquoted_.size();
    while (at < line.size() && spaces.find(line[at]) == std::string_view::npos) {
      if (line[at] != '"' && line[at] != '\'') {
        unquoted_.push_back(line[at++]);
        continue;
      }
      at = append_quoted(line, at, unquoted_);
      if (at == std::string_view::npos) return false;
      if (at < line.size() && spaces.find(line[at]) == std::string_view::npos) return false;
    }
    pieces_.push_back({.offset = begin, .size = unquoted_.size() - begin});
  }
  return true;
}

// ---- commands ----

struct resp_session::command {
  std::string_view name;
  int arity;  // words, or at least so many if negative
  void (resp_session::*handler)(words, resp_writer&);
  bool writes;
  int first_key;  // of the words; 0: none
  int last_key;
  int key_step;
  std::string_view group;
  std::string_view summary;
};

// What is asked for most comes first.
std::span<const resp_session::command> resp_session::commands() noexcept {
  using self = resp_session;
  static constexpr command all[] = {
      {"get", 2, &self::get, false, 1, 1, 1, "string", "Tells the value of a key."},
      {"set", -3, &self::set, true, 1, 1, 1, "string", "Gives a key a value."},
      {"incr", 2, &self::incr, true, 1, 1, 1, "string", "Adds one to the integer of a key."},
      {"mget", -2, &self::mget, false, 1, -1, 1, "string", "Tells the values of several keys."},
      {"mset", -3, &self::mset, true, 1, -1, 2, "string", "Gives several keys their values."},
      {"del", -2, &self::del, true, 1, -1, 1, "generic", "Removes keys."},
      {"exists", -2, &self::exists, false, 1, -1, 1, "generic", "Counts the keys that are there."},
      {"ping", -1, &self::ping, false, 0, 0, 0, "connection", "Tells that the server is there."},
      {"incrby", 3, &self::incrby, true, 1, 1, 1, "string", "Adds a number to the integer of a key."},
      {"decr", 2, &self::decr, true, 1, 1, 1, "string", "Takes one from the integer of a key."},
      {"decrby", 3, &self::decrby, true, 1, 1, 1, "string", "Takes a number from the integer of a key."},
      {"setnx", 3, &self::setnx, true, 1, 1, 1, "string", "Gives a key a value if it has none."},
      {"setex", 4, &self::setex<true>, true, 1, 1, 1, "string", "Gives a key a value for so many seconds."},
      {"psetex", 4, &self::setex<false>, true, 1, 1, 1, "string", "Gives a key a value for so many milliseconds."},
      {"expire", -3, &self::expire<true>, true, 1, 1, 1, "generic", "Lets a key go in so many seconds."},
      {"pexpire", -3, &self::expire<false>, true, 1, 1, 1, "generic", "Lets a key go in so many milliseconds."},
      {"ttl", 2, &self::ttl<true>, false, 1, 1, 1, "generic", "Tells the seconds that a key has left."},
      {"pttl", 2, &self::ttl<false>, false, 1, 1, 1, "generic", "Tells the milliseconds that a key has left."},
      {"persist", 2, &self::persist, true, 1, 1, 1, "generic", "Keeps a key that would expire."},
      {"unlink", -2, &self::del, true, 1, -1, 1, "generic", "Removes keys."},
      {"echo", 2, &self::echo, false, 0, 0, 0, "connection", "Says what it was told."},
      {"hello", -1, &self::hello, false, 0, 0, 0, "connection", "Chooses RESP2 or RESP3."},
      {"client", -2, &self::client, false, 0, 0, 0, "connection",
       "Tells of clients: ID, GETNAME, SETNAME, SETINFO, LIST, INFO."},
      {"select", 2, &self::select, false, 0, 0, 0, "connection", "Chooses one of 16 databases."},
      {"quit", -1, &self::quit, false, 0, 0, 0, "connection", "Ends the connection."},
      {"info", -1, &self::info, false, 0, 0, 0, "server", "Tells of the server."},
      {"command", -1, &self::command_about, false, 0, 0, 0, "server", "Tells of commands: COUNT, DOCS, INFO, LIST."},
      {"config", -2, &self::config, false, 0, 0, 0, "server", "Tells of the configuration: GET."},
      {"dbsize", 1, &self::dbsize, false, 0, 0, 0, "server", "Counts the keys of the database."},
      {"flushall", -1, &self::flush, true, 0, 0, 0, "server", "Removes the keys of all databases."},
      {"flushdb", -1, &self::flush, true, 0, 0, 0, "server", "Removes the keys of the database."},
  };
  return all;
}

const resp_session::command* resp_session::find(std::string_view name) noexcept {
  for (const command& each : commands()) {
    if (is(name, each.name)) return &each;
  }
  return nullptr;
}

void resp_session::run(words said, resp_writer& out) {
  ++service_.commands_;
  if (is(said[0], "post") || is(said[0], "host:")) {  // a browser, which somebody else has sent here
    fault_ = "it speaks HTTP";
    ended_ = true;
    return;
  }
  const command* const found = find(said[0]);
  if (found == nullptr) return unknown(said, out);
  const auto count = static_cast<int>(said.size());
  if (found->arity > 0 ? count != found->arity : count < -found->arity) return out.error(wrong_count(found->name));
  (this->*found->handler)(said, out);
}

// In Redis's words, and as little of the peer's.
void resp_session::unknown(words said, resp_writer& out) {
  constexpr std::size_t most = 128;
  std::string arguments;
  for (const std::string_view each : said.subspan(1)) {
    if (arguments.size() >= most) break;
    fmt::format_to(std::back_inserter(arguments), "'{}' ", each.substr(0, most - arguments.size()));
  }
  out.error(fmt::format("ERR unknown command '{}', with args beginning with: {}", said[0].substr(0, most), arguments));
}

void resp_session::get(words said, resp_writer& out) {
  const auto found = service_.data_.find(in(said[1]), now_);
  found ? out.bulk(found->view()) : out.null();
}

// Whether the table takes the two.
bool resp_session::fits(std::string_view key, std::string_view bytes, resp_writer& out) const {
  const std::size_t longest = service_.data_.longest_value();
  if (!fits_key(key)) {
    out.error(fmt::format("ERR a key has at most {} bytes here", longest_key));
  } else if (bytes.size() > longest) {
    out.error(fmt::format("ERR a value has at most {} bytes here", longest));
  }
  return fits_key(key) && bytes.size() <= longest;
}

struct resp_session::set_choice {
  bool if_absent = false;
  bool if_there = false;
  bool tell_old = false;
  bool keep_expiry = false;
  bool has_expiry = false;
  moment expires = 0;
};

bool resp_session::parse_expiry(std::string_view word, bool seconds, moment from, std::string_view who, moment& into,
                                resp_writer& out) {
  const auto number = integer_of(word);
  if (!number) {
    out.error(not_an_integer);
    return false;
  }
  const auto when = *number > 0 ? moment_after(from, *number, seconds) : std::nullopt;
  if (!when) {
    out.error(invalid_expiry(who));
    return false;
  }
  into = *when;
  return true;
}

bool resp_session::parse_set(words said, set_choice& into, resp_writer& out) {
  for (std::size_t i = 3; i < said.size(); ++i) {
    const std::string_view word = said[i];
    const bool relative = is(word, "ex") || is(word, "px");
    if (is(word, "nx") && !into.if_there) {
      into.if_absent = true;
    } else if (is(word, "xx") && !into.if_absent) {
      into.if_there = true;
    } else if (is(word, "get")) {
      into.tell_old = true;
    } else if (is(word, "keepttl") && !into.has_expiry) {
      into.keep_expiry = true;
    } else if ((relative || is(word, "exat") || is(word, "pxat")) && !into.has_expiry && !into.keep_expiry &&
               i + 1 < said.size()) {
      into.has_expiry = true;
      if (!parse_expiry(said[++i], lower(word[0]) == 'e', relative ? now_ : 0, "set", into.expires, out)) return false;
    } else {
      out.error(syntax_error);
      return false;
    }
  }
  return true;
}

void resp_session::set(words said, resp_writer& out) {
  set_choice how;
  if (said.size() > 3 && !parse_set(said, how, out)) return;
  if (!fits(said[1], said[2], out)) return;
  if (how.if_absent || how.if_there) {  // before anything makes room for what is not stored then
    const auto found = service_.data_.find(in(said[1]), now_);
    if (found.has_value() != how.if_there) return how.tell_old && found ? out.bulk(found->view()) : out.null();
  }
  table::entry place(service_.data_, in(said[1]), now_, said[2].size());
  const bool there = place.there();
  const bool stores = there ? !how.if_absent : !how.if_there;
  if (how.tell_old) {
    there ? out.bulk(place.view()) : out.null();
  } else {
    stores ? out.simple("OK") : out.null();
  }
  if (!stores) return;
  const moment expires = how.keep_expiry && there ? place.beside().expires : how.expires;
  place.store(said[2], {.expires = expires});
}

void resp_session::setnx(words said, resp_writer& out) {
  if (!fits(said[1], said[2], out)) return;
  if (service_.data_.find(in(said[1]), now_)) return out.integer(0);  // as SET with NX
  table::entry place(service_.data_, in(said[1]), now_, said[2].size());
  if (place.there()) return out.integer(0);
  place.store(said[2], {});
  out.integer(1);
}

template <bool InSeconds>
void resp_session::setex(words said, resp_writer& out) {
  moment expires = 0;
  if (!parse_expiry(said[2], InSeconds, now_, InSeconds ? "setex" : "psetex", expires, out)) return;
  if (!fits(said[1], said[3], out)) return;
  service_.data_.set(in(said[1]), said[3], {.expires = expires}, now_);
  out.simple("OK");
}

void resp_session::del(words said, resp_writer& out) {
  std::int64_t removed = 0;
  for (const std::string_view key : said.subspan(1)) {
    if (!fits_key(key)) continue;
    table::entry place(service_.data_, in(key), now_);
    removed += place.there();
    place.erase();
  }
  out.integer(removed);
}

void resp_session::exists(words said, resp_writer& out) {
  const auto there = [&](std::string_view key) { return service_.data_.find(in(key), now_).has_value(); };
  out.integer(std::count_if(said.begin() + 1, said.end(), there));
}

// What was there keeps its expiry and its flags.
void resp_session::add(std::string_view key, std::int64_t what, resp_writer& out) {
  if (!fits(key, {}, out)) return;
  constexpr std::size_t most_digits = 20;
  table::entry place(service_.data_, in(key), now_, most_digits);
  const auto before = place.there() ? integer_of(place.view()) : std::int64_t{0};
  if (!before) return out.error(not_an_integer);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(*before, what, &sum)) return out.error("ERR increment or decrement would overflow");
  const fmt::format_int digits(sum);
  place.store({digits.data(), digits.size()}, place.there() ? place.beside() : attributes());
  out.integer(sum);
}

void resp_session::incr(words said, resp_writer& out) { add(said[1], 1, out); }
void resp_session::decr(words said, resp_writer& out) { add(said[1], -1, out); }

void resp_session::incrby(words said, resp_writer& out) {
  const auto what = integer_of(said[2]);
  if (!what) return out.error(not_an_integer);
  add(said[1], *what, out);
}

void resp_session::decrby(words said, resp_writer& out) {
  const auto what = integer_of(said[2]);
  if (!what) return out.error(not_an_integer);
  if (*what == std::numeric_limits<std::int64_t>::min()) return out.error("ERR decrement would overflow");
  add(said[1], -*what, out);
}

// The sizes come first, so that there is room for the values, and none for those of an answer that would be too long.
void resp_session::mget(words said, resp_writer& out) {
  const words keys = said.subspan(1);
  const auto refuse = [&] {
    out.error(fmt::format("ERR the values have more than {} bytes together", longest_answer));
  };
  std::size_t bytes = 0;
  for (const std::string_view key : keys) {
    if (const auto found = service_.data_.find(in(key), now_)) bytes += found->view().size();
  }
  if (bytes > longest_answer) return refuse();
  const std::size_t before = out.size();
  out.expect(bytes + (1 + keys.size()) * (longest_number_line + line_end.size()));
  out.array(keys.size());
  bytes = 0;
  for (const std::string_view key : keys) {
    const auto found = service_.data_.find(in(key), now_);
    bytes += found ? found->view().size() : 0;
    if (bytes > longest_answer) {  // another thread has set a longer value meanwhile
      out.take_back(before);
      return refuse();
    }
    found ? out.bulk(found->view()) : out.null();
  }
}

// All of it or nothing: who looks in between, on other threads, may see a part.
void resp_session::mset(words said, resp_writer& out) {
  if (said.size() % 2 == 0) return out.error(wrong_count("mset"));
  for (std::size_t i = 1; i < said.size(); i += 2) {
    if (!fits(said[i], said[i + 1], out)) return;
  }
  for (std::size_t i = 1; i < said.size(); i += 2) service_.data_.set(in(said[i]), said[i + 1], {}, now_);
  out.simple("OK");
}

struct resp_session::expire_flags {
  bool nx = false;
  bool xx = false;
  bool gt = false;
  bool lt = false;
};

bool resp_session::parse_expire_flags(words said, expire_flags& into, resp_writer& out) {
  for (const std::string_view option : said.subspan(3)) {
    if (is(option, "nx")) {
      into.nx = true;
    } else if (is(option, "xx")) {
      into.xx = true;
    } else if (is(option, "gt")) {
      into.gt = true;
    } else if (is(option, "lt")) {
      into.lt = true;
    } else {
      out.error(fmt::format("ERR Unsupported option {}", option.substr(0, 32)));
      return false;
    }
  }
  if (into.nx && (into.xx || into.gt || into.lt)) {
    out.error("ERR NX and XX, GT or LT options at the same time are not compatible");
    return false;
  }
  if (into.gt && into.lt) {
    out.error("ERR GT and LT options at the same time are not compatible");
    return false;
  }
  return true;
}

// Where there is no expiry, it is never.
template <bool InSeconds>
void resp_session::expire(words said, resp_writer& out) {
  expire_flags only;
  if (!parse_expire_flags(said, only, out)) return;
  const auto number = integer_of(said[2]);
  if (!number) return out.error(not_an_integer);
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min() / 1000;
  const auto when = *number > 0 ? moment_after(now_, *number, InSeconds) : now_;
  if (!when || (InSeconds && *number < least)) return out.error(invalid_expiry(InSeconds ? "expire" : "pexpire"));
  if (!fits_key(said[1])) return out.integer(0);
  table::entry place(service_.data_, in(said[1]), now_);
  if (!place.there()) return out.integer(0);
  attributes beside = place.beside();
  const moment before = beside.expires != 0 ? beside.expires : latest_moment + 1;
  const bool refused = (only.nx && beside.expires != 0) || (only.xx && beside.expires == 0) ||
                       (only.gt && *when <= before) || (only.lt && *when >= before);
  if (refused) return out.integer(0);
  if (*number > 0) {
    beside.expires = *when;
    place.change(beside);
  } else {
    place.erase();
  }
  out.integer(1);
}

template <bool InSeconds>
void resp_session::ttl(words said, resp_writer& out) {
  constexpr std::int64_t no_key = -2;
  constexpr std::int64_t no_expiry = -1;
  if (!fits_key(said[1])) return out.integer(no_key);
  const table::entry place(service_.data_, in(said[1]), now_);
  if (!place.there()) return out.integer(no_key);
  const moment expires = place.beside().expires;
  if (expires == 0) return out.integer(no_expiry);
  const moment rest = expires - now_;
  out.integer(static_cast<std::int64_t>(InSeconds ? (rest + 500) / 1000 : rest));
}

void resp_session::persist(words said, resp_writer& out) {
  if (!fits_key(said[1])) return out.integer(0);
  table::entry place(service_.data_, in(said[1]), now_);
  if (!place.there() || place.beside().expires == 0) return out.integer(0);
  place.change({.flags = place.beside().flags});
  out.integer(1);
}

void resp_session::ping(words said, resp_writer& out) {
  if (said.size() > 2) return out.error(wrong_count("ping"));
  said.size() == 2 ? out.bulk(said[1]) : out.simple("PONG");
}

void resp_session::echo(words said, resp_writer& out) { out.bulk(said[1]); }

void resp_session::info(words said, resp_writer& out) {
  const auto wanted = [&](std::string_view section) {
    const auto names_it = [&](std::string_view word) {
      return is(word, section) || is(word, "all") || is(word, "everything") || is(word, "default");
    };
    return said.size() == 1 || std::any_of(said.begin() + 1, said.end(), names_it);
  };
  std::string text;
  const auto put = std::back_inserter(text);
  if (wanted("server")) {
    fmt::format_to(put, "# Server\r\nredis_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n", redis_version,
                   getpid());
    fmt::format_to(put, "uptime_in_seconds:{}\r\n\r\n", (now_ - service_.began_) / 1000);
  }
  if (wanted("clients")) {
    fmt::format_to(put, "# Clients\r\nconnected_clients:{}\r\n\r\n", service_.sessions_.size());
  }
  const table& data = service_.data_;
  if (wanted("memory")) {
    fmt::format_to(put, "# Memory\r\nmem_clients_normal:{}\r\nrecord_bytes:{}\r\nrecord_memory:{}\r\n\r\n",
                   service_.held(), data.record_bytes(), data.record_memory());
  }
  if (wanted("stats")) {
    fmt::format_to(put, "# Stats\r\ntotal_connections_received:{}\r\ntotal_commands_processed:{}\r\n",
                   service_.last_id_, service_.commands_);
    fmt::format_to(put, "evicted_keys:{}\r\n\r\n", data.evicted());
  }
  if (wanted("keyspace")) {
    text += "# Keyspace\r\n";
    for (std::size_t i = 0; i < databases; ++i) {
      if (data.size(i) == 0) continue;
      fmt::format_to(put, "db{}:keys={},expires={},avg_ttl={}\r\n", i, data.size(i), data.expiring(i),
                     data.mean_time_left(now_, i));
    }
  }
  out.verbatim(text);
}

void resp_session::hello(words said, resp_writer& out) {
  int protocol = protocol_;
  if (said.size() > 1) {
    const auto number = integer_of(said[1]);
    if (!number) return out.error("ERR Protocol version is not an integer or out of range");
    if (*number != 2 && *number != 3) return out.error("NOPROTO unsupported protocol version");
    protocol = static_cast<int>(*number);
  }
  std::optional<std::string_view> name;  // only what is right as a whole changes anything
  for (std::size_t i = 2; i < said.size(); i += 2) {
    if (is(said[i], "auth") && i + 2 < said.size()) return out.error("ERR there are no passwords here");
    if (!is(said[i], "setname") || i + 1 == said.size()) {
      return out.error(fmt::format("ERR Syntax error in HELLO option '{}'", said[i].substr(0, 128)));
    }
    name = said[i + 1];
    if (!fits_name(*name, out)) return;
  }
  if (name) name_ = *name;
  protocol_ = protocol;
  out.map(7);
  const std::pair<std::string_view, std::string_view> about[] = {{"server", "kv"}, {"version", redis_version}};
  for (const auto& [key, what] : about) out.bulk(key), out.bulk(what);
  out.bulk("proto"), out.integer(protocol);
  out.bulk("id"), out.integer(static_cast<std::int64_t>(id_));
  out.bulk("mode"), out.bulk("standalone");
  out.bulk("role"), out.bulk("master");
  out.bulk("modules"), out.array(0);
}

bool resp_session::rename(std::string_view name, resp_writer& out) {
  if (!fits_name(name, out)) return false;
  name_ = name;
  return true;
}

bool resp_session::fits_name(std::string_view name, resp_writer& out) {
  constexpr std::size_t longest_name = 128;
  const auto fits = [](char c) { return c > ' ' && c <= '~'; };
  if (name.size() <= longest_name && std::all_of(name.begin(), name.end(), fits)) return true;
  out.error("ERR Client names cannot contain spaces, newlines or special characters.");
  return false;
}

std::string resp_session::describe() const {
  return fmt::format("id={} addr={} name={} age={} db={} resp={}\n", id_, peer_, name_,
                     (service_.now_() - began_) / 1000, database_, protocol_);
}

void resp_session::client(words said, resp_writer& out) {
  const std::string_view what = said[1];
  const std::size_t more = said.size() - 2;
  if (is(what, "id") && more == 0) return out.integer(static_cast<std::int64_t>(id_));
  if (is(what, "getname") && more == 0) return name_.empty() ? out.null() : out.bulk(name_);
  if (is(what, "setname") && more == 1) return rename(said[2], out) ? out.simple("OK") : void();
  if (is(what, "setinfo") && more == 2) return out.simple("OK");  // a library's name and version, which nobody asks for
  if (is(what, "info") && more == 0) return out.verbatim(describe());
  if (is(what, "list")) {
    std::string text;
    for (const resp_session* each : service_.sessions_) text += each->describe();
    return out.verbatim(text);
  }
  out.error(fmt::format("ERR unknown subcommand or wrong number of arguments for '{}'", what.substr(0, 128)));
}

void resp_session::command_about(words said, resp_writer& out) {
  const auto tell = [&](const command& which) {
    out.array(10);
    out.bulk(which.name);
    out.integer(which.arity);
    out.set(1);
    out.simple(which.writes ? "write" : "readonly");
    for (const int number : {which.first_key, which.last_key, which.key_step}) out.integer(number);
    for (int i = 0; i < 4; ++i) out.array(0);  // categories, tips, more of keys, subcommands
  };
  const auto document = [&](const command& which) {
    out.bulk(which.name);
    out.map(2);
    out.bulk("summary"), out.bulk(which.summary);
    out.bulk("group"), out.bulk(which.group);
  };
  const std::string_view what = said.size() > 1 ? said[1] : "info";
  const words names = said.size() > 2 ? said.subspan(2) : words();
  if (is(what, "count") && names.empty()) return out.integer(static_cast<std::int64_t>(commands().size()));
  if (is(what, "list")) {
    out.array(commands().size());
    for (const command& each : commands()) out.bulk(each.name);
  } else if (is(what, "info")) {
    out.array(names.empty() ? commands().size() : names.size());
    if (names.empty()) std::for_each(commands().begin(), commands().end(), tell);
    for (const std::string_view name : names) {
      const command* const found = find(name);
      found != nullptr ? tell(*found) : out.null_array();
    }
  } else if (is(what, "docs")) {
    const auto known = [](std::string_view name) { return find(name) != nullptr; };
    const auto count =
        names.empty() ? commands().size() : static_cast<std::size_t>(std::count_if(names.begin(), names.end(), known));
    out.map(count);
    if (names.empty()) std::for_each(commands().begin(), commands().end(), document);
    for (const std::string_view name : names) {
      if (const command* const found = find(name)) document(*found);
    }
  } else {
    out.error(fmt::format("ERR unknown subcommand or wrong number of arguments for '{}'", what.substr(0, 128)));
  }
}

// What redis-benchmark asks for: whether anything is written to a disk.
void resp_session::config(words said, resp_writer& out) {
  const fmt::format_int longest(service_.data_.longest_value());
  const std::pair<std::string_view, std::string_view> all[] = {
      {"save", ""},
      {"appendonly", "no"},
      {"databases", "16"},
      {"proto-max-bulk-len", {longest.data(), longest.size()}}};
  static_assert(databases == 16);
  if (!is(said[1], "get") || said.size() < 3) {
    return out.error(
        fmt::format("ERR unknown subcommand or wrong number of arguments for '{}'", said[1].substr(0, 128)));
  }
  const auto asked = [&](std::string_view name) {
    const auto names_it = [&](std::string_view pattern) { return pattern == "*" || is(pattern, name); };
    return std::any_of(said.begin() + 2, said.end(), names_it);
  };
  const auto counts = [&](const auto& each) { return asked(each.first); };
  out.map(static_cast<std::size_t>(std::count_if(std::begin(all), std::end(all), counts)));
  for (const auto& [name, what] : all) {
    if (asked(name)) out.bulk(name), out.bulk(what);
  }
}

void resp_session::select(words said, resp_writer& out) {
  const auto number = integer_of(said[1]);
  if (!number) return out.error(not_an_integer);
  if (*number < 0 || *number >= static_cast<std::int64_t>(databases)) return out.error("ERR DB index is out of range");
  database_ = static_cast<std::size_t>(*number);
  out.simple("OK");
}

void resp_session::dbsize(words, resp_writer& out) {
  out.integer(static_cast<std::int64_t>(service_.data_.size(database_)));
}

void resp_session::flush(words said, resp_writer& out) {
  const bool known = said.size() == 1 || (said.size() == 2 && (is(said[1], "sync") || is(said[1], "async")));
  if (!known) return out.error(syntax_error);
  flushing_.emplace(service_.data_, is(said[0], "flushdb") ? std::optional(database_) : std::nullopt);
  go_on_flushing(out);
}

// A table may be large, and others wait: so a little of it in a turn, and one flush.
bool resp_session::go_on_flushing(resp_writer& out) {
  constexpr std::uint64_t buckets_in_a_turn = 1024;
  wants_turn_ = true;
  if (flushing_->go_on(buckets_in_a_turn)) return false;
  flushing_.reset();
  out.simple("OK");
  return true;
}

void resp_session::quit(words, resp_writer& out) {
  out.simple("OK");
  ended_ = true;
}

}  // namespace kv
