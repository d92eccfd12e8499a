// SPDX-License-Identifier: Apache-2.0
// Finds the pages, sections and names that have all words of the query. `pages` comes from search-index.js: rows of
// title, place, kind and text.
const query = document.getElementById("query");

// Where the text has the word, and how well: 3 as a whole word, 2 at the beginning of one, 1 within one, 0 not at all.
// Parts of a name such as connect_with_retry are words.
function find(text, word) {
  const joins = (one, other) => /^[\p{L}\p{N}]{2}$/u.test(one + other);
  let best = {at: -1, well: 0};
  for (let at = text.indexOf(word); at >= 0 && best.well < 3; at = text.indexOf(word, at + 1)) {
    const behind = at + word.length;
    const begins = at === 0 || !joins(text[at - 1], word[0]);
    const ends = behind === text.length || !joins(word[word.length - 1], text[behind]);
    const well = !begins ? 1 : ends ? 3 : 2;
    if (well > best.well) best = {at, well};
  }
  return best;
}

function score(row, words) {
  const title = row[0].toLowerCase(), last = title.split("::").pop(), text = row[3].toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (last === word || title === word) sum += 100;
    else if (last.startsWith(word)) sum += 40;
    else {
      const points = Math.max([0, 5, 30, 35][find(title, word).well], [0, 1, 8, 12][find(text, word).well]);
      if (points === 0) return 0;
      sum += points;
    }
  }
  return sum + (row[2] === "class" || row[2] === "struct" ? 3 : 0);
}

function excerpt(text, words) {
  const places = words.map((word) => find(text.toLowerCase(), word).at).filter((place) => place >= 0);
  const first = Math.min(...places, text.length);
  const at = first < 120 || first === text.length ? 0 : text.indexOf(" ", first - 60) + 1;
  return (at > 0 ? "… " : "") + text.slice(at, at + 180) + (text.length > at + 180 ? " …" : "");
}

function search() {
  // As names stand in code and in errors: weft::net::connection, <weft/net/connection.hpp>, errc::closed:
  const words = query.value.toLowerCase().replace(/weft(::|\/)/g, "").split(/[\s().,;<>"`]+|:(?=\s|$)/).filter(Boolean);
  const found = document.getElementById("found"), told = document.getElementById("told");
  found.textContent = "";
  if (words.length === 0) {
    told.textContent = "Names, sections and what is written in them.";
    return;
  }
  const rows = pages.map((row) => [score(row, words), row]).filter(([points]) => points > 0);
  rows.sort((a, b) => b[0] - a[0] || a[1][0].length - b[1][0].length);
  told.textContent = rows.length === 0 ? "Nothing has all of these words." : `${rows.length} found${rows.length > 60 ? ", the best 60" : ""}`;
  for (const [, row] of rows.slice(0, 60)) {
    const item = document.createElement("p"), link = document.createElement("a"), kind = document.createElement("small");
    link.href = row[1];
    link.textContent = row[0];
    kind.textContent = " " + row[2];
    const notInTitle = words.filter((word) => find(row[0].toLowerCase(), word).well < 2);
    item.append(link, kind, document.createElement("br"), excerpt(row[3], notInTitle));
    found.append(item);
  }
}

query.value = new URLSearchParams(location.search).get("q") || "";
query.addEventListener("input", search);
search();
