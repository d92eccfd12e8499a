// SPDX-License-Identifier: Apache-2.0
// Finds the pages, sections and names that have all words of the query. `pages` comes from search-index.js: rows of
// title, place, kind and text.
const query = document.getElementById("query");

function score(row, words) {
  const title = row[0].toLowerCase(), last = title.split("::").pop(), text = row[3].toLowerCase();
  let sum = 0;
  for (const word of words) {
    if (last === word || title === word) sum += 100;
    else if (last.startsWith(word)) sum += 40;
    else if (title.includes(word)) sum += 20;
    else if (text.includes(word)) sum += 1;
    else return 0;
  }
  return sum + (row[2] === "class" || row[2] === "struct" ? 3 : 0);
}

function excerpt(text, words) {
  const places = words.map((word) => text.toLowerCase().indexOf(word)).filter((place) => place >= 0);
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
    const notInTitle = words.filter((word) => !row[0].toLowerCase().includes(word));
    item.append(link, kind, document.createElement("br"), excerpt(row[3], notInTitle));
    found.append(item);
  }
}

query.value = new URLSearchParams(location.search).get("q") || "";
query.addEventListener("input", search);
search();
