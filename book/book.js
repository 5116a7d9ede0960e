"use strict";
/* book.js: brings code beside the text, explains words, searches, copies commands, turns pages. Without it every page
 * still shows its text, and below or beside it all code that it cites. */
const page = document.documentElement, framed = self !== top;
const at = selector => document.querySelector(selector), all = selector => [...document.querySelectorAll(selector)];
const stored = (...value) => { try { return value.length ? localStorage.theme = value[0] : localStorage.theme; } catch { return null; } };
const theme = new URLSearchParams(location.search).get("theme") ?? stored();
if (theme) page.dataset.theme = theme;
page.classList.add("js", ...framed ? ["framed"] : []);

function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
}

const isDark = () => (page.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

/* ---- code beside the text: an excerpt of this page, or the page of a whole file in a frame ---- */

let opener = null; /* the link that brought what is shown; Escape goes back to it */
let side, bar;

function open(link, content) {
    all("#code .shown, #code iframe").forEach(old => old.localName === "iframe" ? old.remove() : old.classList.remove("shown"));
    all("main a[aria-current]").forEach(other => other.removeAttribute("aria-current"));
    link.closest("main")?.contains(link) && link.setAttribute("aria-current", "true");
    if (link.closest("main")) opener = link;
    document.body.classList.add("open");
    if (content.localName === "iframe") side.append(content);
    else content.classList.add("shown");
    bar.replaceChildren(...content.localName === "iframe" ? [make("a", { href: link.href, textContent: content.title })] : [],
        make("button", { type: "button", textContent: "Close", onclick: close }));
    side.scrollTop = 0;
}

function close() {
    document.body.classList.remove("open");
    opener?.focus();
}

function follow(event) {
    const link = event.target.closest?.("a.file, a.note");
    if (!link || bar.contains(link) || !side || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const excerpt = link.dataset.note && document.getElementById(`code-${link.dataset.note}`);
    if (excerpt) {
        open(link, excerpt);
        if (event.detail === 0) excerpt.querySelector("a").focus(); /* the keyboard did it */
    } else {
        const address = new URL(link.href);
        address.search = `theme=${isDark() ? "dark" : "light"}`;
        open(link, make("iframe", { src: address.href, title: link.dataset.file }));
    }
}

function beginSide() {
    side = at("#code");
    if (!side) return;
    bar = make("div", { className: "bar" });
    side.prepend(bar);
    document.addEventListener("click", follow);
    const first = at("main a.note");
    if (first && matchMedia("(min-width: 1000px)").matches) open(first, document.getElementById(`code-${first.dataset.note}`));
}

/* ---- words of the glossary ---- */

function beginWords() {
    const tip = make("div", { id: "tip", role: "tooltip", hidden: true });
    document.body.append(tip);
    const show = event => {
        const word = event.target.closest?.(".word");
        if (!word) return event.target.closest?.("#tip") || hide();
        tip.replaceChildren(make("b", { textContent: word.dataset.word }), `: ${WORDS[word.dataset.word]}`);
        tip.hidden = false;
        word.setAttribute("aria-describedby", "tip");
        const { left, top, bottom } = word.getClientRects()[0];
        tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 16))}px`;
        tip.style.top = `${bottom + tip.offsetHeight + 8 < innerHeight ? bottom + 2 : top - tip.offsetHeight - 2}px`;
    };
    const hide = () => {
        tip.hidden = true;
        at("[aria-describedby=tip]")?.removeAttribute("aria-describedby");
    };
    for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, show);
    addEventListener("scroll", hide, { passive: true });
    return hide;
}

/* ---- search ---- */

function search(input, found) {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (input.value.trim().length < 2) return found.replaceChildren();
    const score = ([, title, section, text]) => words.reduce((sum, word) => {
        const points = 9 * section.toLowerCase().includes(word) + 3 * title.toLowerCase().includes(word) + text.toLowerCase().includes(word);
        return points && sum && sum + points;
    }, 1);
    const hits = INDEX.map(entry => [score(entry), entry]).filter(([points]) => points).sort((a, b) => b[0] - a[0]);
    found.replaceChildren(make("span", { textContent: hits.length ? `${hits.length} places` : "Nothing found." }),
        ...hits.slice(0, 12).map(([, [address, title, section, text]]) => {
            const place = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
            return make("a", { href: page.dataset.root + address }, make("b", { textContent: section }),
                make("small", { textContent: title }), make("small", { textContent: `… ${text.slice(place, place + 150)} …` }));
        }));
}

function beginSearch() {
    const form = at("#search"), input = form.querySelector("input"), found = at("#found");
    form.hidden = false;
    input.addEventListener("focus", () => document.head.append(make("script", {
        src: `${page.dataset.root}search.js`, onload: () => input.value && search(input, found) })), { once: true });
    input.addEventListener("input", () => typeof INDEX === "undefined" || search(input, found));
    form.addEventListener("submit", event => { event.preventDefault(); found.querySelector("a")?.click(); });
    return () => { found.replaceChildren(); };
}

/* ---- commands, keys, light and dark ---- */

function beginCopying() {
    for (const block of all(".command")) {
        const button = make("button", { type: "button", textContent: "copy", ariaLabel: "Copy this command" });
        button.addEventListener("click", async () => {
            await navigator.clipboard.writeText(block.querySelector("code").textContent);
            button.textContent = "copied";
            setTimeout(() => { button.textContent = "copy"; }, 1500);
        });
        block.append(button);
    }
    for (const box of all("pre, .scroll")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
}

function beginKeys(...closers) {
    document.addEventListener("keydown", event => {
        if (event.key === "Escape") {
            closers.forEach(closer => closer());
            if (at("#contents").open) at("#contents").open = false;
            else if (document.body.classList.contains("open")) close();
        }
        const turn = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
        if (framed || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, pre, .scroll, figure")) return;
        if (turn) at(`link[rel=${turn}]`) && location.assign(at(`link[rel=${turn}]`).href);
        if (event.key === "/") { event.preventDefault(); at("#search input").focus(); }
    });
    document.addEventListener("click", event => { if (!event.target.closest("#contents")) at("#contents").open = false; });
}

function beginTheme() {
    const button = at("#theme"), name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.hidden = false;
    button.addEventListener("click", () => {
        page.dataset.theme = stored(isDark() ? "light" : "dark") ?? (isDark() ? "light" : "dark");
        name();
    });
    name();
}

document.addEventListener("DOMContentLoaded", () => {
    beginSide();
    beginTheme();
    beginCopying();
    beginKeys(beginWords(), beginSearch());
});
