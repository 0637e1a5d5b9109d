// Material's search completes each word of a query: "a" in "cancel a job" would find every word with an a.
const LITTLE = /\b(?:an?|and|at|by|for|from|how|i|in|into|is|it|my|of|on|or|the|to|with)\s+/gi
const QUERY = 2 // SearchMessageType of Material for MkDocs 9
const post = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = message?.type === QUERY && typeof message.data === "string"
  const sent = isQuery ? { ...message, data: message.data.replace(LITTLE, "") } : message
  return post.call(this, sent, ...rest)
}
