"use strict";
/* book.js: brings code beside the text, explains words, searches, copies commands, turns pages. Without it a page shows
 * its text and all code that it cites. */
const page = document.documentElement, at = selector => document.querySelector(selector);
const all = selector => [...document.querySelectorAll(selector)];
const on = (kind, act, place = document) => place.addEventListener(kind, act);
const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

const theme = new URLSearchParams(location.search).get("theme") ?? localStorage.theme;
if (theme) page.dataset.theme = theme;
page.classList.add("js", self === top ? "alone" : "framed"); /* framed: a whole file beside a text */
const themeNow = () => page.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const otherTheme = () => themeNow() === "dark" ? "light" : "dark";

function beginTheme() {
    const button = at("#theme");
    button.hidden = false;
    button.textContent = otherTheme();
    button.onclick = () => {
        localStorage.theme = page.dataset.theme = otherTheme();
        button.textContent = otherTheme();
    };
}

let opener = null; /* the link that brought the code; Escape goes back to it */

function close() {
    document.body.classList.remove("open");
    opener?.focus();
}

/* Shows the excerpt of an anchor if this page has it, or else a whole file in a frame. */
function open(link) {
    all("#code iframe").forEach(frame => frame.remove());
    all("#code .shown").forEach(excerpt => excerpt.classList.remove("shown"));
    if (at("main").contains(link)) {
        opener?.removeAttribute("aria-current");
        opener = link;
        opener.setAttribute("aria-current", "true");
    }
    at("#code .bar").replaceChildren(make("button", { type: "button", textContent: "close", onclick: close }));
    document.body.classList.add("open");
    at("#code").scrollTop = 0;
    const excerpt = document.getElementById(`code-${link.dataset.note}`);
    excerpt?.classList.add("shown");
    if (excerpt) return;
    const address = new URL(link.href);
    address.search = `theme=${themeNow()}`;
    at("#code .bar").append(make("a", { href: link.href, textContent: link.dataset.file }));
    at("#code").append(make("iframe", { src: address.href, title: link.dataset.file }));
}

function beginCode() {
    if (!at("#code")) return;
    at("#code").prepend(make("div", { className: "bar" }));
    on("click", event => {
        const link = event.target.closest("a[data-file]");
        if (!link || link.closest(".bar") || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        open(link);
        if (event.detail === 0) at("#code .shown a, #code .bar a").focus(); /* Enter was pressed */
    });
    if (at("main a.note") && innerWidth >= 1000) open(at("main a.note"));
}

/* The line of the glossary, below a word under the pointer or with the focus. */
function beginWords() {
    const tip = make("div", { id: "tip", role: "tooltip", hidden: true });
    document.body.append(tip);
    const show = event => {
        const word = event.target.closest(".word");
        if (event.target === tip) return;
        at("[aria-describedby=tip]")?.removeAttribute("aria-describedby");
        tip.hidden = !word;
        if (!word) return;
        tip.textContent = `${word.dataset.word}: ${WORDS[word.dataset.word]}`;
        word.setAttribute("aria-describedby", "tip");
        const { left, top, bottom } = word.getClientRects()[0], below = bottom + tip.offsetHeight < innerHeight;
        tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 16))}px`;
        tip.style.top = `${below ? bottom : top - tip.offsetHeight}px`;
    };
    for (const kind of ["pointerover", "focusin"]) on(kind, show);
    on("keydown", event => { if (event.key === "Escape") tip.hidden = true; });
}

/* Shows the sections that have all words: those with a word in the heading first. */
function search() {
    const words = at("#search input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const points = ([, ...texts]) => words.reduce((sum, word) => {
        const [title, heading, text] = texts.map(part => part.toLowerCase().includes(word));
        return sum && (title || heading || text) && sum + 3 * title + 9 * heading;
    }, words.join("").length > 1);
    const hits = INDEX.map(entry => [points(entry), entry]).filter(hit => hit[0]).sort((a, b) => b[0] - a[0]);
    const links = hits.slice(0, 12).map(([, [address, title, heading, text]]) => {
        const link = make("a", { href: page.dataset.root + address, textContent: heading });
        const place = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
        link.append(...[title, text.slice(place, place + 150)].map(line => make("small", { textContent: line })));
        return link;
    });
    at("#found").replaceChildren(...words.length ? [`${hits.length} found`, ...links] : []);
}

function beginSearch() {
    at("#search").hidden = false;
    at("#search input").onfocus = () => {
        if (!window.INDEX) document.head.append(make("script", { src: `${page.dataset.root}search.js`, onload: search }));
    };
    at("#search input").oninput = () => window.INDEX && search();
    at("#search").onsubmit = event => {
        event.preventDefault();
        at("#found a")?.click();
    };
}

function beginCopying() {
    for (const command of all(".command")) {
        const button = make("button", { type: "button", textContent: "copy" });
        button.onclick = async () => {
            await navigator.clipboard.writeText(command.querySelector("code").textContent);
            button.textContent = "copied";
        };
        command.append(button);
    }
}

function beginKeys() {
    on("keydown", event => {
        if (event.key === "Escape") {
            if (!at("#contents").open && !at("#found a") && at(".open")) close();
            at("#contents").open = false;
            at("#found").replaceChildren();
        }
        if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, pre, .scroll, figure")) return;
        if (event.key === "ArrowLeft") at(".pager [rel=prev]")?.click();
        if (event.key === "ArrowRight") at(".pager [rel=next]")?.click();
        if (event.key !== "/") return;
        event.preventDefault();
        at("#search input").focus();
    });
    for (const box of all("pre, .scroll, figure")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
}

on("DOMContentLoaded", () => [beginTheme, beginCode, beginWords, beginSearch, beginCopying, beginKeys].forEach(f => f()));
