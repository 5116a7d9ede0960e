"use strict";
/* book.js: brings code beside the text, explains words, searches, copies commands, turns pages. Without it a page shows
 * its text and all code that it cites. */
const page = document.documentElement, at = selector => document.querySelector(selector);
const all = selector => [...document.querySelectorAll(selector)];
const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

let storage = {};
try { storage = localStorage; } catch { /* The browser forbids it: a choice holds for one page. */ }

/* Before the page is drawn. framed: a whole file beside a text, in whose address the text says which theme it has. */
page.dataset.theme = new URLSearchParams(location.search).get("theme") ?? storage.theme ??
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
page.classList.add("js", self === top ? "alone" : "framed");

let opener = null; /* the link in the text that brought the code: closing goes back to it */

function close() {
    document.body.classList.remove("open");
    opener?.focus();
}

/* Shows the excerpt of an anchor, or else a whole file in a frame. From there a button leads back to the excerpt. */
function open(link) {
    all("#code iframe").forEach(frame => frame.remove());
    all("#code .shown").forEach(shown => shown.classList.remove("shown"));
    document.body.classList.add("open");
    at("#code").scrollTop = 0;
    if (at("main").contains(link)) {
        opener?.removeAttribute("aria-current");
        opener = link;
        opener.setAttribute("aria-current", "true");
        if (innerWidth < 1000) opener.scrollIntoView(); /* the code comes up over the lower part of the text */
    }
    const excerpt = document.getElementById(`code-${link.dataset.note}`), whole = at("#opened");
    (excerpt ?? whole).classList.add("shown");
    at("#back").hidden = link === opener;
    if (excerpt) return;
    const address = new URL(link.href);
    address.search = `theme=${page.dataset.theme}`;
    Object.assign(whole, { href: link.href, textContent: link.dataset.file });
    at("#code").append(make("iframe", { src: address.href, title: link.dataset.file }));
}

/* Shows the line of the glossary below a word that is pointed at, or has the focus. */
function explain(event) {
    const word = event.target.closest(".word"), tip = at("#tip");
    if (event.target === tip) return;
    at("[aria-describedby=tip]")?.removeAttribute("aria-describedby");
    tip.hidden = !word;
    if (!word) return;
    tip.textContent = word.dataset.line;
    word.setAttribute("aria-describedby", "tip");
    const { left, top, bottom } = word.getClientRects()[0], below = bottom + tip.offsetHeight < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 16))}px`;
    tip.style.top = `${below ? bottom : top - tip.offsetHeight}px`;
}

/* Lists the sections and the code in which each word begins some word; first those with many of them in headings. */
function search() {
    const words = at("#search input").value.match(/[\p{L}\d]+/gu) ?? [];
    const begins = words.map(word => new RegExp(`(?<![\\p{L}\\d])${word}`, "iu"));
    const points = ([, title, heading]) => begins.filter(word => word.test(`${title} ${heading}`)).length;
    const hits = (window.INDEX ?? []).filter(entry => words.length && begins.every(word => word.test(entry.join(" "))));
    const links = hits.sort((a, b) => points(b) - points(a)).slice(0, 12).map(([address, title, heading, text]) => {
        const link = make("a", { href: page.dataset.root + address, textContent: heading });
        const place = Math.max(0, text.search(begins[0]) - 60);
        for (const line of [title, text.slice(place, place + 150)]) link.append(make("small", { textContent: line }));
        return link;
    });
    at("#found").replaceChildren(...words.length ? [`${hits.length} found`, ...links] : []);
}

async function click(event) {
    const link = event.target.closest("a[data-file]"), command = event.target.closest(".command button");
    if (!event.target.closest("#contents")) at("#contents").open = false;
    if (event.target.id === "theme")
        page.dataset.theme = storage.theme = page.dataset.theme === "dark" ? "light" : "dark";
    if (event.target.id === "back") open(opener);
    if (event.target.id === "close") close();
    if (command) {
        await navigator.clipboard.writeText(command.parentElement.querySelector("code").textContent);
        command.textContent = "copied";
    }
    if (!link || !at("#code") || link.id === "opened" || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link);
    if (event.detail === 0) (at("#code article.shown a") ?? at("#opened")).focus(); /* Enter was pressed */
}

function press(event) {
    if (event.key === "Escape") {
        if (!at("#contents").open && !at("#found a") && at(".open")) close();
        at("#contents").open = false;
        at("#found").replaceChildren();
        at("#tip").hidden = true;
        if (event.target.closest("#search")) event.target.blur(); /* arrow keys turn pages again */
    }
    const to = { ArrowLeft: "[rel=prev]", ArrowRight: "[rel=next]", "/": "#search input" }[event.key];
    const box = event.target.closest("input, pre, .scroll, figure"); /* has its own use for these keys */
    if (!to || box || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    at(to)?.focus();
    at(to)?.click();
}

document.addEventListener("DOMContentLoaded", () => {
    for (const [kind, act] of Object.entries({ click, keydown: press, pointerover: explain, focusin: explain }))
        document.addEventListener(kind, act);
    const index = make("script", { src: `${page.dataset.root}search.js`, onload: search });
    Object.assign(at("#search input"), { oninput: search, onfocus: () => document.head.append(index) });
    at("#search").onsubmit = () => { at("#found a")?.click(); return false; };
    for (const box of all("pre, .scroll, figure")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    if (at("#code") && at("main a.note") && innerWidth >= 1000) open(at("main a.note"));
});
