// A page that was opened from disk may start no worker: what it would do, a hidden frame does.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => (inside.ready = resolve));
      inside.document.write(`<body><script>
        postMessage = answer;
        importScripts = (...urls) => urls.reduce((before, src) => before.then(() => new Promise((onload) => {
          document.body.appendChild(Object.assign(document.createElement("script"), { src, onload }));
        })), Promise.resolve());
      </script><script src="${url}"></script><script>ready()</script></body>`);
      inside.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
