"use strict";
/* book_robot.js: added to each page of the book by test_book.py. Uses the page as a reader would, and sends what it
 * shows to the frame around it. The frame then changes its width, and the page says whether it is wider than that. */
const robotErrors = [];
addEventListener("error", event => robotErrors.push(event.message));
addEventListener("unhandledrejection", event => robotErrors.push(String(event.reason)));
const shows = element => Boolean(element && element.getClientRects().length);
const textOfLines = place => [...place.querySelectorAll(".l")].map(line => line.textContent).join("");

/* Frames would load hundreds of whole files, which are shown as pages of their own, too. So what a frame is to load is
 * kept here instead. */
const opened = [], append = Element.prototype.append;
Element.prototype.append = function (...nodes) {
    opened.push(...nodes.filter(node => node.tagName === "IFRAME").map(frame => frame.src));
    append.apply(this, nodes.filter(node => node.tagName !== "IFRAME"));
};

function leadsBack(button, excerpt) {
    const away = shows(button) && !shows(excerpt);
    button.click();
    return away && shows(excerpt) && !shows(button);
}

/* For each link to an anchor: what is shown beside the text after Enter (a click without a pointer), whether the focus
 * is there, and where the whole file then opens. For the first of a page: whether a button leads back. */
function followNotes() {
    return [...document.querySelectorAll("main a.note")].map((link, i) => {
        link.click();
        const shown = [...document.querySelectorAll("#code article")].filter(shows);
        if (shown.length !== 1) return { note: link.dataset.note, excerpts: shown.length };
        const entered = shown[0].contains(document.activeElement);
        const back = document.getElementById("back"), early = i === 0 && shows(back);
        const frames = [...shown[0].querySelectorAll("a")].map(whole => {
            whole.click();
            return opened.pop();
        });
        const returns = i === 0 ? !early && leadsBack(back, shown[0]) : null;
        const code = shown[0].querySelector("pre"), first = Number(code.style.counterReset.split(" ")[1]) + 1;
        return { note: link.dataset.note, file: link.dataset.file, first, text: textOfLines(code), frames, returns, entered };
    });
}

/* Links to files without an anchor: the address of the frame that they open. */
function followFiles() {
    return [...document.querySelectorAll("main a[data-file]:not(.note)")].map(link => {
        link.click();
        return [link.href, opened.pop()];
    });
}

/* On the page of a file: the anchors whose line is not to be seen, or is not marked, after a jump to them. */
function missedAnchors() {
    return [...document.querySelectorAll("main pre a[id^=note-]")].filter(anchor => {
        location.hash = anchor.id;
        const line = anchor.closest(".l"), { top, bottom } = line.getBoundingClientRect();
        const bar = document.querySelector("body > header").getBoundingClientRect().bottom;
        const marked = getComputedStyle(line).backgroundColor !== getComputedStyle(line.parentElement).backgroundColor;
        const right = line.textContent.includes(`note: ${anchor.id.slice(5)}`);
        return top < bar || bottom > innerHeight || !marked || !right;
    }).map(anchor => anchor.id);
}

/* The lines that appear for the words that can be focused. */
function linesOfWords() {
    return [...document.querySelectorAll("main .word[tabindex]")].map(word => {
        word.focus();
        const tip = document.getElementById("tip"), { left, right, top, bottom } = tip.getBoundingClientRect();
        const inside = left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight;
        return [word.textContent, shows(tip) && inside ? tip.textContent : "no line is shown"];
    });
}

/* The last link to code, if the code that it brings covers it. (Below it there is least text to scroll.) */
function coveredLinks() {
    const links = document.getElementById("code") ? [...document.querySelectorAll("main a[data-file]")] : [];
    return links.slice(-1).filter(link => {
        link.click();
        const { top, right, bottom, left } = document.getElementById("code").getBoundingClientRect();
        const own = link.getBoundingClientRect();
        const bar = document.querySelector("body > header").getBoundingClientRect().bottom;
        return own.top < bar || (own.bottom > top && own.top < bottom && own.right > left && own.left < right);
    }).map(link => link.textContent);
}

async function searchFor(words) {
    const input = document.querySelector("#search input"), found = document.getElementById("found");
    input.focus();
    while (!window.INDEX) await new Promise(resolve => setTimeout(resolve, 20));
    input.value = words;
    input.dispatchEvent(new Event("input"));
    const links = [...found.querySelectorAll("a")].map(link => [link.href, link.textContent]);
    input.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    return { links, left: !found.children.length && document.activeElement !== input };
}

/* The background before and after the switch between light and dark is pressed. */
function pressTheme() {
    const colour = () => getComputedStyle(document.body).backgroundColor, before = colour();
    document.getElementById("theme").click();
    const after = colour();
    document.getElementById("theme").click();
    return [before, after, colour()];
}

addEventListener("load", async () => {
    const pathname = decodeURI(location.pathname), isFile = document.body.classList.contains("file");
    const images = [...document.images].filter(image => !image.naturalWidth).map(image => image.src);
    const seen = { pathname, images, figures: [...document.querySelectorAll("figure img")].map(shows) };
    document.documentElement.classList.replace("framed", "alone");
    if (isFile) seen.missed = missedAnchors();
    else Object.assign(seen, {
        notes: document.getElementById("code") ? followNotes() : [],
        files: document.getElementById("code") ? followFiles() : [],
        words: linesOfWords(),
        commands: [...document.querySelectorAll("main .prompt")].map(one => one.querySelector("code").textContent),
        unprompted: [...document.querySelectorAll("main .command:not(.prompt) code")].map(one => one.textContent),
        buttons: [...document.querySelectorAll("main .command")].map(one => shows(one.querySelector("button"))),
    });
    if (location.hash === "#search") Object.assign(seen, {
        theme: pressTheme(),
        found: await searchFor("ring all-reduce"),
        foundCode: await searchFor("gradient_ready"),
    });
    addEventListener("message", () => {
        const covered = innerWidth < 1000 ? coveredLinks() : [], needs = document.documentElement.scrollWidth;
        const cut = [...document.querySelectorAll("main :is(.command, .output) pre")]
            .filter(pre => pre.scrollWidth > pre.clientWidth).map(pre => pre.textContent);
        parent.postMessage({ pathname, width: innerWidth, needs, covered, cut }, "*");
    });
    parent.postMessage({ ...seen, errors: robotErrors }, "*");
});
