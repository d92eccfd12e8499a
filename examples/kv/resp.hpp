// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kv/clock.hpp>
#include <kv/table.hpp>

// The protocol of Redis and Valkey: RESP2 and RESP3.
namespace kv {

/// Appends answers.
class resp_writer {
 public:
  /// `protocol` is 2 or 3, and may change with each answer.
  resp_writer(std::string& into, const int& protocol) noexcept : into_(into), protocol_(protocol) {}

  void simple(std::string_view text) { line('+', text); }
  /// Its first word is the kind of error: ERR. What a peer has said in it is made to fit a line.
  void error(std::string_view text);
  void integer(std::int64_t number) { number_line(':', number); }
  void bulk(std::string_view text);
  /// Text that a terminal may show as it is.
  void verbatim(std::string_view text);
  void null();
  /// In place of an array.
  void null_array();
  void array(std::size_t elements) { number_line('*', static_cast<std::int64_t>(elements)); }
  /// Of so many keys with a value each: an array of both in RESP2.
  void map(std::size_t pairs);
  void set(std::size_t elements);

  /// How long the answers are that have been made.
  [[nodiscard]] std::size_t size() const noexcept { return into_.size(); }
  /// Makes room for so many bytes more, so that it is not doubled for them.
  void expect(std::size_t bytes) { into_.reserve(into_.size() + bytes); }
  /// Forgets those behind that size.
  void take_back(std::size_t size) { into_.resize(size); }

 private:
  void line(char kind, std::string_view text);
  void number_line(char kind, std::int64_t number);

  std::string& into_;
  const int& protocol_;
};

class resp_session;

/// What the sessions of one server share. On one thread.
class resp_service {
 public:
  using clock = moment (*)() noexcept;
  static constexpr std::size_t usual_room = std::size_t{256} << 20;
  explicit resp_service(table& data, clock now = server_now, std::size_t room = usual_room) noexcept
      : data_(data), now_(now), room_(room), began_(now()) {}

  /// Memory that is held for clients: what they have sent of commands that are not whole, and answers that wait.
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  /// Whether more may be held for a client that something is held for already.
  [[nodiscard]] bool has_room() const noexcept { return held_ < room_; }
  /// For one of them `now` bytes are held, instead of `before`.
  void count(std::size_t before, std::size_t now) noexcept { held_ = held_ - before + now; }

 private:
  friend class resp_session;
  table& data_;
  clock now_;
  std::size_t room_;
  std::size_t held_ = 0;
  moment began_;
  std::uint64_t last_id_ = 0;
  std::uint64_t commands_ = 0;
  std::list<resp_session*> sessions_;
};

/// One client, over whatever carries its bytes. Of a command as a whole, keys and values included, it takes no more
/// than longest_command bytes and most_words words.
class resp_session {
 public:
  static constexpr std::size_t longest_command = 2 * longest_value;
  static constexpr std::size_t most_words = 1024;
  /// Answers that are made before somebody takes them: one more, at most.
  static constexpr std::size_t enough_answers = std::size_t{64} << 10;
  /// Of the values of one answer, together. (CLIENT LIST has more if there are 8,000 clients.)
  static constexpr std::size_t longest_answer = longest_command;

  resp_session(resp_service& of, std::string_view peer);
  resp_session(const resp_session&) = delete;
  resp_session& operator=(const resp_session&) = delete;
  ~resp_session();

  /// Executes the commands that `input` holds whole, until there are enough answers, appends these to `output`, and
  /// yields how many bytes the commands took. Called anew with what is left and what has come since. Empty if the
  /// client wants to go, or its words mean nothing: the last answer says so, and nothing more is to be read.
  [[nodiscard]] std::optional<std::size_t> execute(std::string_view input, std::string& output);
  /// Whether execute() has stopped so that others get their turn: it is to be called again then, whatever has come.
  [[nodiscard]] bool wants_turn() const noexcept { return wants_turn_; }
  /// How the client has broken the protocol; empty if it has not.
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }

 private:
  using words = std::span<const std::string_view>;
  struct command;
  struct subcommand;
  struct set_choice;
  struct expire_flags;
  enum class parsed : std::uint8_t { whole, incomplete, broken };
  enum class number_found : std::uint8_t { yes, incomplete, no };
  struct piece {
    std::size_t offset;
    std::size_t size;
  };

  // Parsing: what has been found of the command that begins the input stays, however it is cut.
  parsed parse(std::string_view input, resp_writer& out);
  parsed parse_inline(std::string_view input, resp_writer& out);
  bool unquote(std::string_view line);
  parsed parse_word(std::string_view input, resp_writer& out);
  parsed refuse(std::string_view why, resp_writer& out);
  number_found parse_number(std::string_view input, std::int64_t& number);
  void forget_command() noexcept;

  // Commands.
  static std::span<const command> commands() noexcept;
  static const command* find(std::string_view name) noexcept;
  void run(words said, resp_writer& out);
  void unknown(words said, resp_writer& out);
  void get(words said, resp_writer& out);
  void set(words said, resp_writer& out);
  void setnx(words said, resp_writer& out);
  void del(words said, resp_writer& out);
  void exists(words said, resp_writer& out);
  void incr(words said, resp_writer& out);
  void decr(words said, resp_writer& out);
  void incrby(words said, resp_writer& out);
  void decrby(words said, resp_writer& out);
  void mget(words said, resp_writer& out);
  void mset(words said, resp_writer& out);
  // Times are in seconds if `InSeconds`, else in milliseconds.
  template <bool InSeconds>
  void setex(words said, resp_writer& out);
  template <bool InSeconds>
  void expire(words said, resp_writer& out);
  template <bool InSeconds>
  void ttl(words said, resp_writer& out);
  void persist(words said, resp_writer& out);
  void ping(words said, resp_writer& out);
  void echo(words said, resp_writer& out);
  void info(words said, resp_writer& out);
  void hello(words said, resp_writer& out);
  void client(words said, resp_writer& out);
  void command_about(words said, resp_writer& out);
  void config(words said, resp_writer& out);
  void select(words said, resp_writer& out);
  void dbsize(words said, resp_writer& out);
  void flush(words said, resp_writer& out);
  void quit(words said, resp_writer& out);

  bool parse_set(words said, set_choice& into, resp_writer& out);
  bool parse_expiry(std::string_view word, bool seconds, moment from, std::string_view who, moment& into,
                    resp_writer& out);
  void add(std::string_view key, std::int64_t what, resp_writer& out);
  bool rename(std::string_view name, resp_writer& out);
  bool fits_name(std::string_view name, resp_writer& out);
  bool fits(std::string_view key, std::string_view bytes, resp_writer& out) const;
  bool parse_expire_flags(words said, expire_flags& into, resp_writer& out);
  bool go_on_flushing(resp_writer& out);
  [[nodiscard]] key_in in(std::string_view key) const noexcept { return {key, database_}; }
  [[nodiscard]] std::string describe() const;

  resp_service& service_;
  std::uint64_t id_;
  std::string peer_;
  std::string name_;
  std::string fault_;
  std::size_t database_ = 0;
  int protocol_ = 2;
  bool ended_ = false;
  bool wants_turn_ = false;
  std::optional<table::clearing> flushing_;  // answered once that is done
  moment now_ = 0;
  moment began_;

  // Of the command that begins the input.
  std::size_t position_ = 0;             // what is before it has been parsed
  std::optional<std::size_t> expected_;  // words that it has
  std::vector<piece> pieces_;            // of the input, or
  std::string unquoted_;                 // of the words of a line with quotes
  std::vector<std::string_view> words_;
};

}  // namespace kv
