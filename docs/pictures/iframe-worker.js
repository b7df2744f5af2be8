/* Browsers start no workers for pages that are opened as files. The search then runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html><html><body></body></html>"
      this.frame.onload = () => this.start(url)
      document.body.append(this.frame)
      this.onmessage = null
    }
    start(url) {
      const inside = this.frame.contentWindow
      const pass = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (typeof this.onmessage === "function") this.onmessage(event)
      }
      inside.postMessage = pass // what the script sends
      inside.importScripts = (...sources) => sources.reduce((done, source) => done.then(() => new Promise((next, failed) => {
        const script = inside.document.createElement("script")
        Object.assign(script, { src: source, onload: next, onerror: failed })
        inside.document.body.append(script)
      })), Promise.resolve())
      const script = inside.document.createElement("script")
      script.src = new URL(url, location.href)
      script.onload = () => {
        this.ready = data => inside.dispatchEvent(new MessageEvent("message", { data }))
        this.waiting.forEach(data => this.ready(data))
      }
      inside.document.body.append(script)
    }
    postMessage(data) {
      this.ready ? this.ready(data) : this.waiting.push(data)
    }
    terminate() { this.frame.remove() }
  }
}
