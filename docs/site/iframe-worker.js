/* A worker for pages that are read from the disk, where browsers give them none: a hidden frame
   runs the script, and messages go between it and the page.  Elsewhere nothing changes. */
"use strict";

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    /* What the script posts is heard here, as from a worker. */
    inside.postToPage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = (...urls) =>
      urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
    const first = inside.document.createElement("script");
    first.textContent = "var postMessage = (data) => postToPage(data);";
    inside.document.head.append(first);
    this.ready = this.load(new URL(url, document.baseURI).href);
  }

  load(src) {
    return new Promise((done, failed) => {
      const inside = this.frame.contentWindow;
      const script = inside.document.createElement("script");
      Object.assign(script, { src, onload: done, onerror: () => failed(new Error(src)) });
      inside.document.head.append(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => {
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    });
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
